//! Memory, numbers of objects, and the command of the recording.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use wirecap_broker::{Ask, Reply};
use wirecap_testbed::wait_until;

use crate::bed::{Attacker, Bed, is_refusal, terms, terms_with};

pub(crate) fn memory_is_bounded() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let total = fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = total.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024;
    for bytes in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 48, total + 1] {
        let reply = attacker.ask(&Ask::PoolFile { bytes }).0;
        assert!(matches!(reply, Reply::Refused(_)), "{bytes}: {reply:?}");
    }
    // Whether a file of no bytes exists is the kernel's decision.
    let _ = attacker.ask(&Ask::PoolFile { bytes: 0 });
    let mut files = Vec::new();
    // Without pages: the limit is on the sum of the lengths.
    let part = total / 4;
    let refused = loop {
        match attacker.ask(&Ask::PoolFile { bytes: part }) {
            (Reply::File(number, _), Some(file)) => files.push((number, file)),
            (reply, _) => break reply,
        }
        assert!(files.len() <= 4, "more than the memory of the machine");
    };
    assert!(matches!(refused, Reply::Refused(_)), "{refused:?}");
    assert!(files.len() >= 3, "{} files", files.len());
    attacker.is_done(&Ask::Release { object: files[0].0 });
    assert!(matches!(attacker.ask(&Ask::PoolFile { bytes: part }).0, Reply::File(..)));
    attacker.end();
}

pub(crate) fn the_memory_of_a_socket_is_that_of_its_file() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let (file, memory) = attacker.object(&Ask::PoolFile { bytes: 1 << 20 });
    let (socket, _descriptor) = attacker.object(&Ask::XdpSocket);
    for bytes in [(1 << 20) + 1, 1 << 21, 1 << 47, u64::MAX] {
        let reply = attacker.ask(&Ask::RegisterUmem { socket, file, bytes, cell_bytes: 2048 }).0;
        assert!(matches!(reply, Reply::Refused(_)), "{bytes}: {reply:?}");
    }
    attacker.is_refused(&Ask::RegisterUmem { socket, file, bytes: 0, cell_bytes: 2048 });
    for cell_bytes in [0, 1, 3, 1024, 8193, 1 << 31, u32::MAX] {
        attacker.is_refused(&Ask::RegisterUmem { socket, file, bytes: 1 << 20, cell_bytes });
    }
    // A file that its user has cut off has no pages to register, and does not end the broker.
    rustix::fs::ftruncate(memory.unwrap(), 0).unwrap();
    attacker.is_refused(&Ask::RegisterUmem { socket, file, bytes: 1 << 20, cell_bytes: 2048 });
    attacker.end();
}

pub(crate) fn the_number_of_objects_is_bounded() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let mut made = 0;
    // Either the limit of the broker is reached, or that of its descriptors.
    let reply = loop {
        match attacker.ask(&Ask::XdpSocket).0 {
            Reply::Object(_) => made += 1,
            reply => break reply,
        }
        assert!(made <= 1 << 14, "{made} objects");
    };
    assert!(is_refusal(&reply), "{reply:?}");
    for ask in [Ask::PacketSocket, Ask::XdpSocket, Ask::PoolFile { bytes: 4096 }] {
        attacker.is_refused(&ask);
    }
    attacker.is_done(&Ask::Release { object: 1 });
    attacker.object(&Ask::PacketSocket);
    attacker.end();
}

/// A command that notes its last argument.
const NOTE: &str = r#"printf '%s\n' "$1" >> "$0""#;

fn run(path: &Path) -> Ask {
    Ask::Run { path: path.as_os_str().as_bytes().to_vec() }
}

/// A folder with the directory of a recording, which is the user's, and a file for notes.
struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("recordings")).unwrap();
        fs::write(folder.path().join("notes"), "").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(folder.path().join("notes"), Some(65534), Some(65534)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.path("notes")).unwrap()
    }

    fn attacker(&self, bed: &Bed) -> Attacker {
        let notes = self.path("notes");
        let command = ["sh", "-c", NOTE, notes.to_str().unwrap()];
        Attacker::new(bed, &terms_with(&command, &self.path("recordings")))
    }
}

pub(crate) fn the_command_runs_only_for_paths_in_the_directory() {
    let bed = Bed::new();
    let folder = Folder::new();
    let attacker = folder.attacker(&bed);
    let recordings = folder.path("recordings");
    let outside = [
        recordings.join("../secret"),
        recordings.join("sub/../../secret"),
        recordings.join(".."),
        folder.path("recordings-2/a"),
        folder.path("secret"),
        "/etc/shadow".into(),
        "recordings/a".into(),
        "--use-compress-program=id".into(),
        "".into(),
        "/".into(),
    ];
    for path in &outside {
        attacker.is_refused(&run(path));
    }
    // The kernel does not know such a path.
    let reply =
        attacker.ask(&Ask::Run { path: [recordings.as_os_str().as_bytes(), b"/a\0b"].concat() }).0;
    assert!(is_refusal(&reply), "{reply:?}");
    let inside = recordings.join("trace; touch x $(id)");
    attacker.is_done(&run(&inside));
    wait_until("the command has run", || !folder.notes().is_empty());
    attacker.end();
    assert_eq!(
        folder.notes(),
        format!("{}\n", inside.display()),
        "as one word, and for no other path"
    );
}

/// The broker opens no file for a command, whose user is that of the recording: so a symbolic link
/// leads to nothing that the user could not open anyway, and the path is passed on as it is.
pub(crate) fn a_link_in_the_directory_is_only_a_name() {
    let bed = Bed::new();
    let folder = Folder::new();
    let secret = folder.path("secret");
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let link = folder.path("recordings").join("link");
    symlink(&secret, &link).unwrap();
    let notes = folder.path("notes");
    let read = r#"printf '%s\n' "$1" >> "$0"; cat "$1" >> "$0" 2>/dev/null; id -u >> "$0""#;
    let command = ["sh", "-c", read, notes.to_str().unwrap()];
    let attacker = Attacker::new(&bed, &terms_with(&command, &folder.path("recordings")));
    attacker.is_done(&run(&link));
    wait_until("the command has run", || folder.notes().lines().count() == 2);
    attacker.end();
    let expected = format!("{}\n65534\n", link.display());
    assert_eq!(folder.notes(), expected, "the command runs as the user of the recording");
    assert_eq!(fs::read_to_string(secret).unwrap(), "root's");
}

pub(crate) fn without_a_command_nothing_runs() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    attacker.is_refused(&run(Path::new("/nonexistent/recordings/a")));
    attacker.end();
}
