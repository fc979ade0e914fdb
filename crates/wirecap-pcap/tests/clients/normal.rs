//! Removes from a client's output what depends on when it ran, and not on what it saw.

/// The unchanged text.
pub(crate) fn as_is(text: &str) -> String {
    text.to_owned()
}

/// Masks all numbers.
pub(crate) fn numbers(text: &str) -> String {
    let mut masked = String::new();
    for character in text.chars() {
        match character.is_ascii_digit() {
            true if masked.ends_with('#') => {}
            true => masked.push('#'),
            false => masked.push(character),
        }
    }
    masked
}

/// Masks times of day and dates, but no other numbers.
pub(crate) fn times(text: &str) -> String {
    by_line(text, |line| {
        Some(line.split([' ', '\t']).map(time_of_day).collect::<Vec<_>>().join(" "))
    })
}

/// Like [`times`], with distinct lines in alphabetical order: for clients that list results in the
/// order of arrival.
pub(crate) fn sorted_times(text: &str) -> String {
    sorted(&times(text))
}

/// The distinct lines in alphabetical order.
pub(crate) fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    lines.join("\n")
}

/// The lines with any of these words.
pub(crate) fn lines_with(text: &str, words: &[&str]) -> String {
    by_line(text, |line| words.iter().any(|word| line.contains(word)).then(|| line.to_owned()))
}

/// The lines with none of these words.
pub(crate) fn lines_without(text: &str, words: &[&str]) -> String {
    by_line(text, |line| (!words.iter().any(|word| line.contains(word))).then(|| line.to_owned()))
}

/// Two texts without their common lines at the beginning and at the end.
pub(crate) fn where_they_differ(one: &str, other: &str) -> (String, String) {
    let (mut one, mut other): (Vec<&str>, Vec<&str>) =
        (one.lines().collect(), other.lines().collect());
    // From the end, then from the beginning.
    for _ in 0..2 {
        while one.last().is_some_and(|line| other.last() == Some(line)) {
            one.pop();
            other.pop();
        }
        one.reverse();
        other.reverse();
    }
    (one.join("\n"), other.join("\n"))
}

/// Replaces each line with the result of `each`, or removes it if that is `None`.
pub(crate) fn by_line(text: &str, each: impl Fn(&str) -> Option<String>) -> String {
    text.lines().filter_map(each).map(|line| line + "\n").collect()
}

/// Masks a word in the form of a time or date: at least three numbers with colons, dashes or
/// slashes between them.
fn time_of_day(word: &str) -> String {
    let is_time = |mark: char| {
        let parts: Vec<&str> =
            word.trim_matches(|c: char| "[](),;".contains(c)).split(mark).collect();
        let is_number = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_digit() || ".T:".contains(c))
        };
        parts.len() >= 3 && parts.iter().all(is_number) && parts.iter().all(|part| part.len() < 16)
    };
    if [':', '-', '/'].into_iter().any(is_time) { numbers(word) } else { word.to_owned() }
}
