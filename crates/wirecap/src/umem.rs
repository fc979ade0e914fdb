//! The life of cells: the pool's memory, the rings that post, receive and send, and the chunks that
//! hold cells in between.
//!
//! ```text
//!   pool, supply ──► fill ── the kernel fills a posted cell ──► rx ──► chunk
//!                     ▲                                                 │
//!                     ├──────────── recycle ◄────── it is dropped ──────┤
//!                     │                                                 │ its packets are sent (`forward`)
//!                   owners ◄── completion ◄── the kernel sends it ── tx ◄┘
//! ```
//!
//! A cell returns in one of two ways: a dropped [`chunk`] returns its list ([`recycle`]), or the
//! kernel has sent the cell ([`tx`]) and puts it on the [`completion`] ring. Its address determines
//! its owner ([`owners`]), and [`fill`] posts it again if [`supply`] requires it. A single
//! [`reader`] takes cells from rx and returns them to fill without a chunk. Packets of several
//! cells are [`fragments`]. Debug builds check each step ([`cell_check`]).

pub(crate) mod cell_check;
pub(crate) mod chunk;
pub(crate) mod completion;
pub(crate) mod fill;
pub(crate) mod fragments;
pub(crate) mod owners;
pub(crate) mod pool;
pub(crate) mod reader;
pub(crate) mod recycle;
pub(crate) mod ring;
pub(crate) mod rx;
mod starvation;
pub(crate) mod supply;
pub(crate) mod tx;
