//! A cell's whole life: the pool's memory, captured lists, the way back, and the rings that post and send.
//!
//! ```text
//!   pool, supply          fill ── the kernel fills a posted cell ──► rx (`ring`)
//!     ▲                    ▲                                          │ a chunk holds a list of cells
//!     │                    │ post                                     ▼
//!   owners ◄─ completion ─ tx ◄───────────── sent ──────────── recycle, fragments
//! ```
//!
//! A cell comes back by one of two ways: a dropped chunk gives its list back ([`recycle`]), or the kernel has
//! sent it ([`tx`], by its completion ring). Where it belongs is told by its address ([`owners`]), and
//! [`fill`] posts it again, as far as [`supply`] says. Debug builds check each step ([`cell_check`]).

pub(crate) mod cell_check;
pub(crate) mod chunk;
pub(crate) mod fill;
pub(crate) mod fragments;
pub(crate) mod owners;
pub(crate) mod pool;
pub(crate) mod recycle;
pub(crate) mod rx;
pub(crate) mod supply;
pub(crate) mod tx;
