//! What a broker refuses, whatever it is asked.

use std::path::PathBuf;

use proptest::prelude::*;
use wirecap_broker::{Terms, User, judge};

fn terms() -> Terms {
    Terms {
        interfaces: vec!["lo".to_owned()],
        user: User { name: "nobody".to_owned(), uid: 65534, gid: 65534 },
        directory: PathBuf::from("/var/lib/recordings"),
        command: Some(vec!["true".to_owned()]),
        socket: None,
    }
}

proptest! {
    /// A process that was taken over sends what it likes.
    #[test]
    fn bytes_of_any_kind_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200), descriptors in 0_usize..70) {
        let _judgement = judge(&terms(), &bytes, descriptors);
    }
}
