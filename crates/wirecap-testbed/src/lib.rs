//! A test bed for capture engines: receivers, hosts, taps, disturbances and rules for tests, beside
//! the namespaces, veth pairs, senders and independent counters of [`wirecap_send`].
//!
//! Everything is in anonymous network namespaces: the machine's own interfaces are not touched, any
//! number of test beds can exist at the same time, and the kernel removes everything when a process
//! ends for any reason.
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

mod dedicated;
mod disturbance;
mod goal;
mod hook;
mod inline;
mod jam;
mod packet;
mod receiving;
mod skip;
mod steady;
mod sys;
mod tap;
mod testing;
mod traces;
mod tun;
mod witness;

pub use dedicated::{dedicate, dedicated, dedicated_directory};
pub use disturbance::{CpuTime, Disturbance, Watch, cpu_times, repeat_if_disturbed};
pub use goal::{Bound, Figure, Goals, Verdict};
pub use hook::{redirect_by_tc, redirect_by_tcx};
pub use inline::{Host, Inline};
pub use jam::Jam;
pub use packet::{PacketReceiver, PacketSender};
pub use receiving::{drop_program, pass_program};
pub use skip::{skip, skip_on_this_machine, void};
pub use steady::{SteadySender, Ticks};
pub use tap::{TapCable, TapKind, open_macvtap, open_tap};
pub use testing::{
    LossLock, frames_of_several_cells, loss_lock, privileged, skewed_time, uninterrupted,
    wait_until, write_program,
};
pub use traces::{own_traces, traces};
pub use tun::Tun;
pub use wirecap_send::{
    AfXdpSender, Counters, Generator, Interface, KernelSender, Load, Namespace, Pacer, Rate, Run,
    RxQueueCounts, SendError, Sent, SetupError, Sizes, SlowCore, Snapshot, Stamp, Stopper, Traffic,
    TxQueueCounts, VethPair, monotonic_ns, sleep_until_ns,
};
pub use witness::Witness;
