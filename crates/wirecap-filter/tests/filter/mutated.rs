//! The stored corpus of the translator's fuzz target, unchanged and with several thousand kinds of
//! damage.

use std::fs;
use std::path::Path;

use crate::body::translate;
use crate::choices::Choices;

const MUTATIONS_PER_FILE: u64 = 300;

#[test]
fn damaged_programs_are_translated_or_rejected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/filter_translator");
    let paths =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> =
        paths.map(|entry| entry.expect("the folder can be read").path()).collect();
    assert!(!paths.is_empty(), "{} has no files", folder.display());
    paths.sort();
    for path in paths {
        let bytes = fs::read(path).expect("the file can be read");
        translate(&bytes);
        for seed in 0..MUTATIONS_PER_FILE {
            translate(&damaged(&bytes, &mut Choices::from_seed(seed, 64)));
        }
    }
}

fn damaged(bytes: &[u8], choices: &mut Choices) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=choices.below(4) {
        let at = choices.below(bytes.len() as u32) as usize;
        match choices.below(4) {
            0 => bytes[at] = choices.byte(),
            1 => bytes[at] ^= 1 << choices.below(8),
            2 => bytes[at] = choices.of(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => bytes.truncate(at + 1),
        }
    }
    bytes
}
