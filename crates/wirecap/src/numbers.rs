//! Lists of numbers as people write them.

/// `2`, `0-3`, `0,2`, `0-1,4`: the numbers in a list of ranges, in its order; `None` for anything
/// else, and if one of them is `limit` or more.
pub(crate) fn parse_ranges(list: &str, limit: u32) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= limit {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_numbers_and_ranges() {
        assert_eq!(parse_ranges("2", 3), Some(vec![2]));
        assert_eq!(parse_ranges("0-3", 4), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse_ranges("4,0-1,4", 9), Some(vec![4, 0, 1, 4]));
        for bad in ["", "x", "-1", "3-1", "0,", "9", "0-4294967295", "0 - 1"] {
            assert_eq!(parse_ranges(bad, 9), None, "{bad}");
        }
    }
}
