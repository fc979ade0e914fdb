//! A cell's whole life: the pool's memory, the rings that post, receive and send, and what holds cells in between.
//!
//! ```text
//!   pool, supply ──► fill ── the kernel fills a posted cell ──► rx ──► chunk
//!                     ▲                                                 │
//!                     ├──────────── recycle ◄────── it is dropped ──────┤
//!                     │                                                 │ its packets are sent (`forward`)
//!                   owners ◄── completion ◄── the kernel sends it ── tx ◄┘
//! ```
//!
//! A cell comes back in one of two ways: a dropped [`chunk`] gives its list back ([`recycle`]), or the kernel has
//! sent the cell ([`tx`]) and puts it on the [`completion`] ring. Its address tells whose it is ([`owners`]), and
//! [`fill`] posts it again, as far as [`supply`] says. A lone [`reader`] takes cells from rx and gives them to fill without a chunk. Packets of several cells are [`fragments`]. Debug builds check
//! each step ([`cell_check`]).

pub(crate) mod cell_check;
pub(crate) mod chunk;
pub(crate) mod completion;
pub(crate) mod fill;
pub(crate) mod fragments;
pub(crate) mod owners;
pub(crate) mod pool;
pub(crate) mod reader;
pub(crate) mod recycle;
pub(crate) mod rx;
mod starvation;
pub(crate) mod supply;
pub(crate) mod tx;
