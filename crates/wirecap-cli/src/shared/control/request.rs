//! Requests of clients: one JSON object per line.
//!
//! `rules` has all rules for files: `file_bytes`, `file_packets`, `file_period` (seconds and
//! nanoseconds, and whether by the local clock), `keep_files`, `keep_bytes` and `keep_free`. A
//! field that is absent is a rule that no longer applies. One function checks these rules and the
//! options of the command line, so a client gets the same errors. Rules that are valid but that
//! this recording cannot obey are refused as well: a budget of bytes without room for the file that
//! is being written and the next one, and a budget of free bytes that cannot be kept even if all
//! complete files are removed.

use serde_json::Value;

use crate::shared::recording::options::Rules;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// The ledger so far, and what else there is to know.
    Status,
    /// All events from now on, and those that are kept from before.
    Events,
    /// Another filter.
    Filter(String),
    /// Another filter and other rules for files, those that are given.
    Reload { filter: Option<String>, rules: Option<Rules> },
    /// Another file.
    Rotate,
    /// The end, and an answer when it has come.
    Stop,
}

impl Request {
    /// The request of this line, or why it is none.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let value: Value =
            serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(mut fields) = value else { return Err("not a JSON object".to_owned()) };

        let command = match fields.remove("command") {
            Some(Value::String(command)) => command,
            Some(_) => return Err("\"command\" is not a string".to_owned()),
            None => return Err("\"command\" is missing".to_owned()),
        };
        let request = match command.as_str() {
            "status" => Self::Status,
            "events" => Self::Events,
            "rotate" => Self::Rotate,
            "stop" => Self::Stop,
            "reload" => {
                let filter = match fields.remove("expression") {
                    None | Some(Value::Null) => None,
                    Some(Value::String(expression)) => Some(expression),
                    Some(_) => return Err("\"expression\" is not a string".to_owned()),
                };
                let rules = fields.remove("rules").filter(|rules| !rules.is_null());
                Self::Reload { filter, rules: rules.map(Rules::from_json).transpose()? }
            }
            "filter" => match fields.remove("expression") {
                Some(Value::String(expression)) => Self::Filter(expression),
                _ => return Err("\"filter\" has a string \"expression\"".to_owned()),
            },
            _ => {
                return Err(format!(
                    "unknown command {command:?}: expected status, events, filter, reload, rotate or stop"
                ));
            }
        };

        match fields.keys().next() {
            Some(field) => Err(format!("\"{command}\" has no field {field:?}")),
            None => Ok(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_json_objects_with_a_command() {
        let parse = |text: &str| Request::parse(text.as_bytes());
        assert_eq!(parse(r#"{"command":"status"}"#), Ok(Request::Status));
        assert_eq!(parse(r#" {"command" : "stop"} "#), Ok(Request::Stop));
        let filter = r#"{"expression":"udp port 53","command":"filter"}"#;
        assert_eq!(parse(filter), Ok(Request::Filter("udp port 53".to_owned())));
        assert_eq!(
            parse(r#"{"command":"reload","expression":"","rules":null}"#),
            Ok(Request::Reload { filter: Some(String::new()), rules: None })
        );
        for (text, words) in [
            ("", "not JSON"),
            ("status", "not JSON"),
            ("[1]", "not a JSON object"),
            ("{}", "is missing"),
            (r#"{"command":1}"#, "not a string"),
            (r#"{"command":"halt"}"#, "unknown command"),
            (r#"{"command":"filter"}"#, "expression"),
            (r#"{"command":"reload","rules":{"file_size":1}}"#, "rules"),
            (r#"{"command":"reload","rules":{"keep_files":0}}"#, "--keep-files must be at least 1"),
            (r#"{"command":"reload","expression":1}"#, "not a string"),
            (r#"{"command":"stop","now":true}"#, "no field"),
            (r#"{"command":"status"} {"command":"stop"}"#, "not JSON"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(Request::parse(&[0xff, 0xfe]).is_err() && parse(&"[".repeat(60_000)).is_err());
    }
}
