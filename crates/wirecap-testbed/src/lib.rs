//! A test bed for capture engines: namespaces, veth pairs, an in-kernel generator, and counters that are
//! independent of the engine.
//!
//! Everything is in anonymous network namespaces: the machine's own interfaces are not touched, any number of
//! test beds can exist at the same time, and the kernel removes everything when a process ends for any reason.
//!
//! ```no_run
//! use wirecap_testbed::{Counters, Generator, Load, Namespace, Traffic, VethPair, pass_program};
//!
//! let (here, there) = (Namespace::new()?, Namespace::new()?);
//! let pair = VethPair::new((&here, "a0"), (&there, "a1"), 2, 1500)?;
//! let _receiving = pass_program(&pair.receiver)?;
//!
//! let mut counters = Counters::of(&pair.sender)?;
//! let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver))?;
//! let sent = generator.send(&[Load::new(0, 1_000_000).per_second(500_000)])?;
//! assert_eq!(sent[0].frames, counters.since_start()?.handed_over_as_xdp());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod afxdp;
mod copier;
mod counters;
mod dedicated;
mod disturbance;
mod error;
mod frame_program;
mod generator;
mod goal;
mod hook;
mod inline;
mod interface;
mod jam;
mod namespace;
mod pace;
mod packet;
mod skip;
mod slow_core;
mod steady;
mod sys;
mod tap;
mod testing;
mod traces;
mod traffic;
mod tun;
mod witness;

pub use afxdp::AfXdpSender;
pub use copier::KernelSender;
pub use counters::{Counters, RxQueueCounts, Snapshot, TxQueueCounts};
pub use dedicated::dedicated_directory;
pub use disturbance::{CpuTime, Disturbance, Watch, cpu_times, repeat_if_disturbed};
pub use error::{SendError, SetupError};
pub use generator::{Generator, Load, Run, Sent, Stopper};
pub use goal::{Bound, Figure, Goals, Verdict};
pub use hook::{redirect_by_tc, redirect_by_tcx};
pub use inline::{Host, Inline};
pub use interface::{Interface, VethPair, drop_program, pass_program};
pub use jam::Jam;
pub use namespace::Namespace;
pub use pace::{Pacer, Rate, monotonic_ns, sleep_until_ns};
pub use packet::{PacketReceiver, PacketSender};
pub use skip::{skip, skip_on_this_machine, void};
pub use slow_core::SlowCore;
pub use steady::{SteadySender, Ticks};
pub use tap::{TapCable, TapKind, open_macvtap, open_tap};
pub use testing::{
    LossLock, frames_of_several_cells, loss_lock, privileged, skewed_time, uninterrupted, wait_until,
    write_program,
};
pub use traces::{own_traces, traces};
pub use traffic::{Sizes, Stamp, Traffic};
pub use tun::Tun;
pub use witness::Witness;
