//! Commands about this host: its interfaces, their settings and what in them loses packets.

pub(crate) mod advice;
pub(crate) mod dedicate;
pub(crate) mod devices;
pub(crate) mod doctor;
