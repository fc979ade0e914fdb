//! Formatting of errors.

use std::error::Error;

/// An error and all its causes on one line; a cause already contained in the text is omitted.
pub fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // The text of many errors contains that of their causes.
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &dyn Error)
        }
    }

    #[test]
    fn each_cause_is_in_the_text_once() {
        let of = |texts: [&'static str; 3]| {
            texts
                .into_iter()
                .rev()
                .fold(None, |cause, text| Some(Box::new(Layer(text, cause))))
                .unwrap()
        };
        let different = of(["cannot open x", "request failed", "timed out"]);
        assert_eq!(causes(&*different), "cannot open x: request failed: timed out");
        let repeated = of(["cannot open x: request failed", "request failed", "timed out"]);
        assert_eq!(causes(&*repeated), "cannot open x: request failed: timed out");
    }
}
