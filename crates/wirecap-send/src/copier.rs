//! A sender of any frames inside the kernel: an XDP program copies them from a map, and test runs
//! of the program send them. Its rate is within a third of the [`Generator`](crate::Generator)'s,
//! and it has the same restrictions on queues and receivers.

use std::os::fd::AsFd;

use wirecap_filter::bpf::asm::{
    AsmError, Assembler, Condition::*, Helper, Insn, Label, Reg::*, Size::*,
};
use wirecap_filter::bpf::{
    BpfError, Link, LiveFrames, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_DROP,
};

use crate::frames::GENERATED_BYTES_MAX;
use crate::generator::{cpu_reaching, pin_to, reside};
use crate::sys::Mapping;
use crate::{Interface, Namespace, SendError, SetupError};

/// Frames are passed to the kernel in pages: memory that the program accesses as values of a map.
const PAGE_BYTES: usize = 16 << 10;
const PAGES: usize = 64;
/// Each frame has its length before it; a length of 0 ends a page.
const LENGTH_BYTES: usize = 2;
/// The last offset in a page at which a frame of any length may begin.
const START_MAX: usize = PAGE_BYTES - 2 * LENGTH_BYTES - FRAME_BYTES_MAX;
const FRAME_BYTES_MIN: usize = 14;
const FRAME_BYTES_MAX: usize = GENERATED_BYTES_MAX;
/// Frames between two flushes: fewer are slower, more overflow a veth's ring.
const BATCH_FRAMES: u32 = 64;

/// The program's state: the value of an array with one entry, shared with user space between runs.
mod state {
    /// The page, and the offset of the next frame's length in it.
    pub(super) const PAGE: i16 = 0;
    pub(super) const START: i16 = 8;
    /// Number of frames that could not be made from their copies.
    pub(super) const NOT_MADE: i16 = 16;
    /// Number of frames sent or not made.
    pub(super) const TAKEN: i16 = 24;
    pub(super) const BYTES: u32 = 32;
}

/// Sends frames of any content, up to 3,408 bytes, on one queue of an interface.
#[derive(Debug)]
pub struct KernelSender {
    interface: Interface,
    cpu: u32,
    program: Program,
    state: Map,
    pages: Mapping,
    /// The position of the next frame.
    page: usize,
    start: usize,
    waiting_frames: u32,
    sent: u64,
    /// Whether the calling thread is on the right CPU and in the right namespace.
    is_placed: bool,
    _residence: Option<(Link, Namespace)>,
}

impl KernelSender {
    /// Prepares to send to this receive queue of the other end.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if no CPU of this process sends to the queue, or the privilege is missing.
    pub fn on(interface: &Interface, queue: u32) -> Result<Self, SetupError> {
        let failed = |source| SetupError::program(&interface.name, source);
        let cpu = cpu_reaching(queue, interface.queue_count).map_err(|source| {
            SetupError::interface(&interface.name, "reach the queue from a CPU on", source)
        })?;
        let state = Map::create(MapKind::Array, "testbed_copy", state::BYTES, 1).map_err(failed)?;
        let pages = Map::create_mappable("testbed_pages", PAGE_BYTES as u32, PAGES as u32)
            .map_err(failed)?;
        let code = copy(interface.index, &state, &pages).expect("the copier's labels");
        let program = Program::load_trusted(
            ProgramKind::Xdp,
            "testbed_copier",
            &code,
            LoadOptions::default(),
        )
        .map_err(failed)?;

        Ok(Self {
            _residence: reside(&program, interface)?,
            interface: interface.clone(),
            cpu,
            program,
            state,
            pages: Mapping::of_map(&pages, PAGES * PAGE_BYTES).map_err(|source| {
                SetupError::interface(&interface.name, "map frames for", source)
            })?,
            page: 0,
            start: 0,
            waiting_frames: 0,
            sent: 0,
            is_placed: false,
        })
    }

    /// The longest frame that it can send, in bytes.
    pub const FRAME_BYTES_MAX: usize = FRAME_BYTES_MAX;

    /// Takes a frame, Ethernet header included, and sends it together with others: see
    /// [`flush`](Self::flush). All frames must be sent from one thread; the first call binds it to
    /// a CPU and moves it to the interface's namespace.
    ///
    /// # Errors
    ///
    /// [`SendError`] if the frame is too short or too long, or the kernel does not continue.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX.min(self.interface.frame_bytes_max() + 4))
            .contains(&frame.len())
        {
            let interface = self.interface.name.clone();
            let frame_bytes = frame.len();
            let source = std::io::Error::from_raw_os_error(libc::EMSGSIZE);
            return Err(SendError::Socket { interface, frame_bytes, source });
        }

        if self.start > START_MAX {
            self.page += 1;
            self.start = 0;
        }

        if self.page == PAGES {
            self.flush()?;
        }

        let at = self.page * PAGE_BYTES + self.start;
        self.pages.write(at, &(frame.len() as u16).to_ne_bytes());
        self.pages.write(at + LENGTH_BYTES, frame);
        self.start += (LENGTH_BYTES + frame.len()).next_multiple_of(2);

        // The end of the page, unless another frame follows.
        self.pages.write(self.page * PAGE_BYTES + self.start, &[0; LENGTH_BYTES]);
        self.waiting_frames += 1;
        self.sent += 1;

        Ok(())
    }

    /// Sends all frames taken so far.
    ///
    /// # Errors
    ///
    /// [`SendError`] if the kernel does not continue, or some frames could not be made.
    pub fn flush(&mut self) -> Result<(), SendError> {
        if !self.is_placed {
            self.interface
                .namespace
                .enter()
                .and_then(|()| pin_to(self.cpu))
                .map_err(|source| SendError::Thread { source })?;
            self.is_placed = true;
        }

        if self.waiting_frames > 0 {
            let not_made = self.run().map_err(|source| SendError::Program { source })?;
            if not_made > 0 {
                // The CPU determines the queue.
                let queue = self.cpu % self.interface.queue_count;
                return Err(SendError::NotMade { queue, frames: not_made });
            }
        }

        (self.page, self.start, self.waiting_frames) = (0, 0, 0);
        Ok(())
    }

    /// Number of frames taken.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends the waiting frames. Returns the number of frames that could not be made.
    fn run(&mut self) -> Result<u64, BpfError> {
        self.state.update(0, &[0; state::BYTES as usize])?;
        let mut taken = 0;
        while taken < u64::from(self.waiting_frames) {
            let run = self.program.run_live(LiveFrames {
                frame: &[0; FRAME_BYTES_MAX],
                frame_count: self.waiting_frames - taken as u32,
                batch_frames: BATCH_FRAMES,
                ingress_ifindex: None,
            });
            match run {
                // A signal ends a run early.
                Err(error) if error.errno() != Some(libc::EINTR) => return Err(error),
                _ => taken = self.state_value(state::TAKEN)?,
            }
        }

        self.state_value(state::NOT_MADE)
    }

    fn state_value(&self, offset: i16) -> Result<u64, BpfError> {
        let values = self.state.lookup(0)?;
        Ok(u64::from_ne_bytes(
            *values[0][offset as usize..].first_chunk().expect("a value of the state"),
        ))
    }
}

/// The program. It runs on copies of a template as long as the longest frame.
///
/// `R6` has the context, `R7` the state, `R8` the page, `R9` an offset in it and then a length.
fn copy(ifindex: u32, state: &impl AsFd, pages: &impl AsFd) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Assembler::new();
    let failed = asm.label();
    let found = asm.label();

    asm.mov(R6, R1).load_map_value(R7, state, 0);
    asm.load(Double, R1, R7, state::TAKEN).add(R1, 1).store(Double, R7, state::TAKEN, R1);
    find_page(&mut asm, pages, failed);
    asm.load(Double, R9, R7, state::START);
    load_length(&mut asm, failed);
    asm.jump_if(R2, Ne, 0, found);

    // The page is finished: continue with the next one.
    asm.load(Double, R1, R7, state::PAGE).add(R1, 1).store(Double, R7, state::PAGE, R1);
    find_page(&mut asm, pages, failed);
    asm.mov(R9, 0);
    load_length(&mut asm, failed);
    asm.bind(found).jump_if(R9, Gt, START_MAX as i32, failed);
    asm.jump_if(R2, Lt, FRAME_BYTES_MIN as i32, failed).jump_if(
        R2,
        Gt,
        FRAME_BYTES_MAX as i32,
        failed,
    );

    // The start of the next one, at an even offset.
    asm.mov(R1, R9).add(R1, R2).add(R1, LENGTH_BYTES as i32 + 1).and(R1, !1);
    asm.store(Double, R7, state::START, R1);
    asm.add(R8, R9).add(R8, LENGTH_BYTES as i32).mov(R9, R2);

    let cut = asm.label();
    asm.sub(R2, FRAME_BYTES_MAX as i32).jump_if(R2, Eq, 0, cut);
    asm.mov(R1, R6).call(Helper::XdpAdjustTail).jump_if(R0, Ne, 0, failed).bind(cut);
    asm.mov(R1, R6).mov(R2, 0).mov(R3, R8).mov(R4, R9).call(Helper::XdpStoreBytes);
    asm.jump_if(R0, Ne, 0, failed);
    asm.mov32(R1, ifindex as i32).mov(R2, 0).call(Helper::Redirect).exit();
    asm.bind(failed).load(Double, R1, R7, state::NOT_MADE).add(R1, 1).store(
        Double,
        R7,
        state::NOT_MADE,
        R1,
    );

    asm.mov(R0, XDP_DROP).exit();
    asm.finish()
}

/// `R8` = the page.
fn find_page(asm: &mut Assembler, pages: &impl AsFd, failed: Label) {
    asm.load(Double, R1, R7, state::PAGE).store(Word, R10, -4, R1);
    asm.load_map_fd(R1, pages).mov(R2, R10).add(R2, -4).call(Helper::MapLookup);
    asm.jump_if(R0, Eq, 0, failed).mov(R8, R0);
}

/// `R2` = the length at the offset in `R9`, which is checked to be valid for a frame or the end of
/// a page.
fn load_length(asm: &mut Assembler, failed: Label) {
    asm.jump_if(R9, Gt, (PAGE_BYTES - LENGTH_BYTES) as i32, failed);
    asm.mov(R1, R8).add(R1, R9).load(Half, R2, R1, 0);
}
