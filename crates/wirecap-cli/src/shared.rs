//! Parts that several commands share: options, output, signals, the control socket, files.

#[macro_use]
pub(crate) mod output;

pub(crate) mod app_cost;
pub(crate) mod closed;
pub(crate) mod colour;
pub(crate) mod control;
pub(crate) mod events;
pub(crate) mod failure;
pub(crate) mod filter;
pub(crate) mod habits;
pub(crate) mod history;
pub(crate) mod interfaces;
pub(crate) mod lost;
pub(crate) mod options;
pub(crate) mod progress;
pub(crate) mod recording;
pub(crate) mod screen;
pub(crate) mod sending;
pub(crate) mod service;
pub(crate) mod signals;
pub(crate) mod sink;
pub(crate) mod threads;
