//! Frames on an interface: synthetic ones ([`Traffic`]), those of a traffic model ([`traffic`]),
//! those of a savefile ([`recording`]); sent at given times ([`play`]) or as fast as possible,
//! through AF_XDP ([`AfXdpSender`]) or from inside the kernel ([`Generator`], [`KernelSender`]).
//!
//! [`Counters`] show what the kernel counted. Nothing here uses the engine.
//!
//! ```no_run
//! use wirecap_send::{Counters, Generator, Load, Namespace, Traffic, VethPair};
//!
//! let (here, there) = (Namespace::new()?, Namespace::new()?);
//! let pair = VethPair::new((&here, "a0"), (&there, "a1"), 2, 1500)?;
//!
//! let mut counters = Counters::of(&pair.sender)?;
//! let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver))?;
//! let sent = generator.send(&[Load::new(0, 1_000_000).per_second(500_000)])?;
//! println!("{} frames, {:?}", sent[0].frames, counters.since_start()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod afxdp;
mod copier;
mod counters;
mod error;
mod frame_program;
mod frames;
mod generator;
mod interface;
mod namespace;
mod pace;
pub mod play;
pub mod recording;
mod slow_core;
mod sys;
pub mod traffic;

pub use afxdp::AfXdpSender;
pub use copier::KernelSender;
pub use counters::{Counters, RxQueueCounts, Snapshot, TxQueueCounts};
pub use error::{SendError, SetupError};
pub use frames::{Sizes, Stamp, Traffic};
pub use generator::{Generator, Load, Run, Sent, Stopper};
pub use interface::{Interface, VethPair, run_tool};
pub use namespace::Namespace;
pub use pace::{Pacer, Rate, monotonic_ns, sleep_until_ns};
pub use slow_core::SlowCore;
