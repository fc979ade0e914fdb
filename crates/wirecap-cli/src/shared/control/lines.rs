//! Bytes from a client, split into lines. It holds at most one line and one read, whatever the
//! client sends.

/// The longest line.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes that were read and not yet taken.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// So many of them are known to have no line's end.
    searched: usize,
}

/// A line is longer than [`LINE_BYTES_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether there is a whole line, or too much of one.
    pub(super) fn has_line(&self) -> bool {
        self.bytes.len() > LINE_BYTES_MAX || self.bytes[self.searched..].contains(&b'\n')
    }

    /// The next line, without its end, if it is whole.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        match end.map(|end| self.searched + end) {
            Some(end) if end <= LINE_BYTES_MAX => {
                let rest = self.bytes.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.bytes, rest);
                self.searched = 0;
                line.pop();
                Ok(Some(line))
            }
            None if self.bytes.len() <= LINE_BYTES_MAX => {
                self.searched = self.bytes.len();
                Ok(None)
            }
            _ => Err(TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_returned_when_it_is_complete() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for byte in b"first\n\nthird\nrest" {
            lines.push(&[*byte]);
            found.extend(lines.next().unwrap());
        }
        assert_eq!(found, [&b"first"[..], b"", b"third"]);
        lines.push(b" of it\nnext\n");
        assert_eq!(lines.next(), Ok(Some(b"rest of it".to_vec())));
        assert_eq!(lines.next(), Ok(Some(b"next".to_vec())));
        assert_eq!(lines.next(), Ok(None));
    }

    #[test]
    fn a_too_long_line_is_rejected_with_and_without_an_end() {
        let longest = vec![b'x'; LINE_BYTES_MAX];
        let mut lines = Lines::default();
        lines.push(&longest);
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"\n");
        assert_eq!(lines.next(), Ok(Some(longest.clone())));
        lines.push(&longest);
        lines.push(b"x");
        assert_eq!(lines.next(), Err(TooLong));
        let mut lines = Lines::default();
        lines.push(&[&longest[..], b"x\n"].concat());
        assert_eq!(lines.next(), Err(TooLong));
    }
}
