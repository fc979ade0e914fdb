//! A diagnosis as text, at most as wide as a terminal.

use super::finding::{Diagnosis, Finding, Severity};

/// What lines below a finding begin with.
const LABEL_WIDTH: usize = 11;
const WIDTH: usize = 79;

/// The whole text.
pub(crate) fn text(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for (finding, number) in diagnosis.findings.iter().zip(1..) {
        text += &format!("{}\n", finding_text(finding, number));
    }
    text += &unseen_text(diagnosis);
    text += &summary(diagnosis);
    text
}

pub(crate) fn finding_text(finding: &Finding, number: usize) -> String {
    let subject = finding.interface.as_deref().unwrap_or("host");
    let head = format!("{number}. {subject}: {} ({})", finding.title, finding.severity.words());
    let mut text = wrapped("", &head, 3);

    for (evidence, first) in
        finding.evidence.iter().zip([true].into_iter().chain(std::iter::repeat(false)))
    {
        let label = if first { "seen" } else { "" };
        text += &labelled(label, &format!("{}  [{}]", evidence.value, evidence.source));
    }

    text += &labelled("effect", &finding.consequence);

    for (line, first) in
        finding.commands.iter().zip([true].into_iter().chain(std::iter::repeat(false)))
    {
        // Not wrapped, so that it can be copied.
        text += &format!(
            "   {:<width$}{line}\n",
            if first { "fix" } else { "" },
            width = LABEL_WIDTH - 3
        );
    }

    if let Some(advice) = &finding.advice {
        text += &labelled(if finding.commands.is_empty() { "fix" } else { "" }, advice);
    }

    text
}

fn unseen_text(diagnosis: &Diagnosis) -> String {
    if diagnosis.unseen.is_empty() {
        return String::new();
    }
    let mut text = "Not checked, state unknown:\n".to_owned();
    for unseen in &diagnosis.unseen {
        let subject =
            unseen.interface.as_deref().map(|name| format!("{name}: ")).unwrap_or_default();
        text += &wrapped("", &format!("- {subject}{}: {}", unseen.what, unseen.why), 2);
    }
    text + "\n"
}

/// `5 findings: 1 loses packets, 4 costs`.
pub(crate) fn count_words(findings: &[Finding]) -> String {
    let kinds =
        [Severity::Loses, Severity::Alters, Severity::MayLose, Severity::Costs, Severity::Note];
    let count =
        |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counts: Vec<String> = kinds
        .into_iter()
        .filter(|severity| count(*severity) > 0)
        .map(|severity| severity.count_words(count(severity)))
        .collect();

    match findings.len() {
        0 => "no findings".to_owned(),
        1 => format!("1 finding: {}", counts.join(", ")),
        count => format!("{count} findings: {}", counts.join(", ")),
    }
}

fn summary(diagnosis: &Diagnosis) -> String {
    let findings = &diagnosis.findings;
    if findings.is_empty() {
        let unseen = match diagnosis.unseen.len() {
            0 => "",
            _ => " in the checks that could be made",
        };
        return format!("No findings{unseen}.\n");
    }

    let fixable = findings.iter().filter(|finding| !finding.changes.is_empty()).count();
    let fix = match fixable {
        0 => String::new(),
        _ => format!("; `wirecap doctor --fix` offers to fix {fixable}"),
    };
    wrapped("", &format!("{}{fix}.", count_words(findings)), 0)
}

fn labelled(label: &str, text: &str) -> String {
    wrapped(&format!("   {label:<width$}", width = LABEL_WIDTH - 3), text, LABEL_WIDTH)
}

/// `start` and the words after it, in lines of at most [`WIDTH`] columns, all but the first
/// indented. A word without blanks is not broken.
pub(crate) fn wrapped(start: &str, text: &str, indent: usize) -> String {
    let mut lines = Vec::new();
    let mut line = start.to_owned();
    let mut is_empty = true;

    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            is_empty = true;
        }

        if !is_empty {
            line.push(' ');
        }

        line += word;
        is_empty = false;
    }

    lines.push(line);
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_a_terminal() {
        let finding = Finding::of_host("check", Severity::MayLose, "a title ".repeat(20))
            .seen("/a/file", "1")
            .so("word ".repeat(40))
            .command("command");
        let text = finding_text(&finding, 12);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(
            text.starts_with("12. host: a title") && text.contains("\n   effect  word word"),
            "{text}"
        );
        assert!(
            text.contains("\n   fix     command\n") && text.contains("\n   seen    1 [/a/file]\n"),
            "{text}"
        );
    }

    #[test]
    fn nothing_seen_is_not_nothing_found() {
        let mut diagnosis = Diagnosis::default();
        assert_eq!(text(&diagnosis), "No findings.\n");
        diagnosis.cannot_see(None, "governor", "a virtual machine");
        let text = text(&diagnosis);
        assert!(text.contains("- governor: a virtual machine\n"), "{text}");
        assert!(text.ends_with("\nNo findings in the checks that could be made.\n"), "{text}");
    }
}
