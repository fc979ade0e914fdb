//! XDP programs of a few instructions and the kernel's frame generator, with direct calls of
//! bpf(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_ARRAY: u64 = 2;
const BPF_PSEUDO_MAP_VALUE: u64 = 2;
const BPF_PROG_TYPE_XDP: u64 = 6;
const BPF_XDP: u64 = 37;
const XDP_FLAGS_SKB_MODE: u64 = 1 << 1;
const BPF_F_TEST_XDP_LIVE_FRAMES: u64 = 1 << 1;

/// The verdict of a program for each frame.
#[derive(Clone, Copy)]
pub(crate) enum Verdict {
    Drop,
    Pass,
    /// To the interface of this index.
    Redirect(u32),
}

/// A tcx program that leaves each arriving frame to the next one, attached until it is dropped.
pub(crate) struct TcxProgram {
    _link: OwnedFd,
}

impl TcxProgram {
    /// None if the kernel has no tcx.
    pub(crate) fn attach(index: u32) -> Option<Self> {
        const BPF_PROG_TYPE_SCHED_CLS: u64 = 3;
        const BPF_TCX_INGRESS: u64 = 46;
        let next = u64::from(-1_i32 as u32) << 32;
        let instructions = [0xb7 | next, 0x95];
        let license = c"GPL";
        let attributes = [
            BPF_PROG_TYPE_SCHED_CLS | (instructions.len() as u64) << 32,
            instructions.as_ptr() as u64,
            license.as_ptr() as u64,
        ];
        // SAFETY: the pointers are to instructions and a licence that live until the call returns.
        let program = unsafe { bpf_fd(BPF_PROG_LOAD, &attributes) };
        let attributes = [program.as_raw_fd() as u64 | u64::from(index) << 32, BPF_TCX_INGRESS];
        // SAFETY: no pointers.
        match unsafe { bpf(BPF_LINK_CREATE, &attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            result => {
                let link = result.expect("tcx") as i32;
                // SAFETY: what the command returns is a descriptor without another owner.
                Some(Self { _link: unsafe { OwnedFd::from_raw_fd(link) } })
            }
        }
    }
}

/// Number of loop iterations of a program before its verdict.
#[derive(Clone, Copy)]
struct Turns(u32);

/// A loaded program.
pub(crate) struct Program {
    program: OwnedFd,
    frames: Counter,
}

/// A map with the number of frames on which a program ran.
struct Counter(OwnedFd);

/// A program attached to an interface until it is dropped.
pub(crate) struct Attachment {
    _link: OwnedFd,
}

impl Program {
    pub(crate) fn load(verdict: Verdict) -> Self {
        Self::load_with(verdict, None)
    }

    /// A program that takes some hundred microseconds per frame.
    pub(crate) fn load_slow(verdict: Verdict) -> Self {
        Self::load_with(verdict, Some(Turns(5_000)))
    }

    fn load_with(verdict: Verdict, delay: Option<Turns>) -> Self {
        // opcode | registers << 8 | offset << 16 | immediate << 32
        let mov = |register: u64, value: u64| 0xb7 | register << 8 | value << 32;
        let exit = 0x95;
        let call = |helper: u64| 0x85 | helper << 32;
        let frames = Counter::new();
        let load_value_of = |map: &Counter| {
            [0x18 | 1 << 8 | BPF_PSEUDO_MAP_VALUE << 12 | map.descriptor() << 32, 0]
        };
        let add_one_atomically = [mov(2, 1), 0xdb | 1 << 8 | 2 << 12];
        let mut instructions = Vec::new();
        instructions.extend(load_value_of(&frames));
        instructions.extend(add_one_atomically);
        instructions.extend(delay.into_iter().flat_map(|Turns(turns)| {
            let look_at_the_clock = call(5);
            let decrement = 0x07 | 6 << 8 | u64::from(-1_i32 as u32) << 32;
            let again_unless_zero = 0x55 | 6 << 8 | u64::from(-3_i16 as u16) << 16;
            [mov(6, turns.into()), look_at_the_clock, decrement, again_unless_zero]
        }));
        instructions.extend(match verdict {
            Verdict::Drop => vec![mov(0, 1), exit],
            Verdict::Pass => vec![mov(0, 2), exit],
            Verdict::Redirect(index) => vec![mov(1, index.into()), mov(2, 0), call(23), exit],
        });
        let license = c"GPL";
        let attributes = [
            BPF_PROG_TYPE_XDP | (instructions.len() as u64) << 32,
            instructions.as_ptr() as u64,
            license.as_ptr() as u64,
        ];
        // SAFETY: the pointers are to instructions and a licence that live until the call returns.
        Self { program: unsafe { bpf_fd(BPF_PROG_LOAD, &attributes) }, frames }
    }

    pub(crate) fn attach(&self, index: u32) -> Attachment {
        self.attach_with(index, 0)
    }

    pub(crate) fn attach_generic(&self, index: u32) -> Attachment {
        self.attach_with(index, XDP_FLAGS_SKB_MODE)
    }

    fn attach_with(&self, index: u32, flags: u64) -> Attachment {
        let attributes = [self.descriptor() | u64::from(index) << 32, BPF_XDP | flags << 32];
        // SAFETY: no pointers.
        Attachment { _link: unsafe { bpf_fd(BPF_LINK_CREATE, &attributes) } }
    }

    /// Makes the kernel run the program on at most `count` frames and execute its verdicts. Returns
    /// their number.
    ///
    /// Between two batches the kernel stops for a signal (`bpf_test_timer_continue` in
    /// net/bpf/test_run.c) without saying how many frames it made: so the program counts them.
    pub(crate) fn generate(&self, count: u32, batch: u32) -> u64 {
        let frame = [0x02_u8; 60];
        let mut attributes = [0_u64; 10];
        attributes[0] = self.descriptor();
        attributes[1] = frame.len() as u64;
        attributes[2] = frame.as_ptr() as u64;
        attributes[4] = count.into();
        attributes[8] = BPF_F_TEST_XDP_LIVE_FRAMES;
        attributes[9] = batch.into();
        let before = self.frames.value();
        // SAFETY: the pointer is to the frame, whose length is given and which lives until the call
        // returns.
        match unsafe { bpf(BPF_PROG_TEST_RUN, &attributes) } {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => drop(result.expect("a run of live frames")),
        }
        self.frames.value() - before
    }

    fn descriptor(&self) -> u64 {
        self.program.as_raw_fd() as u64
    }
}

impl Counter {
    fn new() -> Self {
        let key_bytes = 4;
        let value_bytes = 8;
        let entries = 1;
        let attributes = [BPF_MAP_TYPE_ARRAY | key_bytes << 32, value_bytes | entries << 32];
        // SAFETY: no pointers.
        Self(unsafe { bpf_fd(BPF_MAP_CREATE, &attributes) })
    }

    fn value(&self) -> u64 {
        let key = 0_u32;
        let mut value = 0_u64;
        let attributes = [self.descriptor(), (&raw const key) as u64, (&raw mut value) as u64];
        // SAFETY: the pointers are to a key and a value of the map's lengths, which live until the
        // call returns.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &attributes) }.expect("the number of frames");
        value
    }

    fn descriptor(&self) -> u64 {
        self.0.as_raw_fd() as u64
    }
}

/// # Safety
/// The pointers among the attributes are valid for the command.
unsafe fn bpf_fd(command: libc::c_long, attributes: &[u64]) -> OwnedFd {
    const ATTEMPTS: usize = 10;
    for _ in 0..ATTEMPTS {
        // SAFETY: guaranteed by the caller.
        match unsafe { bpf(command, attributes) } {
            // A signal interrupts the verifier.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            // SAFETY: what these commands return is a descriptor without another owner.
            result => return unsafe { OwnedFd::from_raw_fd(result.expect("bpf") as i32) },
        }
    }
    panic!("bpf: interrupted {ATTEMPTS} times");
}

/// # Safety
/// The pointers among the attributes are valid for the command.
unsafe fn bpf(command: libc::c_long, attributes: &[u64]) -> io::Result<libc::c_long> {
    // SAFETY: guaranteed by the caller; the size of the attributes is passed.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
