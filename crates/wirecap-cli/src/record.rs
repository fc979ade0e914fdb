//! Commands that record: captures to files, from the command line, a configuration file and
//! Wireshark.

pub(crate) mod capture;
pub(crate) mod config;
pub(crate) mod extcap;
pub(crate) mod merge;
pub(crate) mod privileges;
