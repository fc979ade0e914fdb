//! The fuzz targets' stored corpus, unchanged and with several thousand kinds of damage.

use std::fs;
use std::path::Path;

use crate::body::{read_compressed, read_pcap, read_pcapng};

const MUTATIONS_PER_FILE: u64 = 400;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    assert!(!paths.is_empty(), "{} has no files", folder.display());
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("the file can be read")).collect()
}

/// Marsaglia's xorshift, so that every run makes the same changes.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Values that are likely to break code that handles lengths and counts.
const ODD_NUMBERS: [u32; 9] =
    [0, 1, 3, 12, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffc, 0xffff_ffff];

fn damage(file: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(file.len());
    let word = at - at % 4..(at - at % 4 + 4).min(file.len());
    match random.below(6) {
        0 => file.truncate(at),
        1 if !file.is_empty() => file[at] ^= 1 << random.below(8),
        2 if word.len() == 4 => {
            file[word].copy_from_slice(&ODD_NUMBERS[random.below(ODD_NUMBERS.len())].to_le_bytes());
        }
        3 if word.len() == 4 => file[word].reverse(),
        4 => {
            let piece = file[at..(at + random.below(64)).min(file.len())].to_vec();
            let to = random.below(file.len());
            file.splice(to..to, piece);
        }
        _ => drop(file.drain(word)),
    }
}

fn run(target: &str, body: fn(&[u8])) {
    for (index, file) in (1..).zip(corpus(target)) {
        body(&file);
        for seed in 0..MUTATIONS_PER_FILE {
            let mut random = Random(index * 1_000_003 + seed);
            let mut damaged = file.clone();
            for _ in 0..=random.below(4) {
                damage(&mut damaged, &mut random);
            }
            body(&damaged);
        }
    }
}

#[test]
fn a_damaged_pcap_file_is_read_or_rejected() {
    run("savefile_pcap", read_pcap);
}

#[test]
fn a_damaged_pcapng_file_is_read_or_rejected() {
    run("savefile_pcapng", read_pcapng);
}

#[test]
fn a_damaged_compressed_file_is_read_or_rejected() {
    run("savefile_compressed", read_compressed);
}
