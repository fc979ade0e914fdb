//! The filter of a capture, changed while packets arrive.

use super::{Attached, Attachment, Capture, Engine, Running};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, FilterRequest};
use crate::sync::lock;
use crate::warning::Warning;
use crate::xdp;

impl Capture {
    /// Captures the packets that match `request` from now on, and no others, on all interfaces; an empty expression matches all. No
    /// packet that both filters want is lost or delivered twice, and whatever chunk is captured after the return
    /// holds wanted packets only. Takes some milliseconds.
    ///
    /// # Errors
    ///
    /// [`FilterChangeError`] if there is no such filter, or it cannot run on what comes from one of the
    /// interfaces. Nothing is changed then, unless the kernel refuses it on a later interface than the first.
    pub fn set_filter(&self, request: impl Into<FilterRequest>) -> Result<(), FilterChangeError> {
        let request = request.into();
        let turns = self.turns().map_err(|error| FilterChangeError::Interface(Box::new(error)))?;
        let mut running = lock(&self.shared.running);
        if running.end.is_some() {
            return Err(FilterChangeError::Stopped);
        }
        if let Some(file) = &running.file {
            return file.set_filter(&request);
        }
        let devices = running.interfaces.iter().map(|attached| &attached.target.device);
        let filters = devices.map(|device| device.compile(&request)).collect::<Result<Vec<_>, _>>()?;
        for ((attached, filter), turn) in running.interfaces.iter_mut().zip(&filters).zip(&turns) {
            attached.set_filter(filter, turn.as_ref())?;
            attached.target.filter = Some(request.clone());
        }
        Ok(())
    }
}

impl Capture {
    /// For each interface the right to change what is attached, where the engine `xdp` captures from it. Waiting for them
    /// takes as long as other processes have theirs, so the capture's lock, without which it cannot be stopped, must not be
    /// held.
    pub(super) fn turns(&self) -> Result<Vec<Option<xdp::Turn>>, OpenError> {
        let mut turns: Vec<Option<xdp::Turn>> = self.interfaces.iter().map(|_| None).collect();
        // In the same order in all processes, or two may wait for each other.
        let mut order: Vec<usize> = (0..turns.len()).collect();
        order.sort_unstable_by_key(|&index| self.interfaces[index].device.index);
        for index in order {
            let interface = &self.interfaces[index];
            if interface.reception.engine() == Engine::Xdp {
                turns[index] = Some(xdp::Turn::wait(&interface.device)?);
            }
        }
        Ok(turns)
    }
}

impl Attached {
    fn set_filter(&mut self, filter: &Filter, turn: Option<&xdp::Turn>) -> Result<(), FilterChangeError> {
        match (&mut self.attachment, turn) {
            (Some(Attachment::Xdp(attachment)), Some(turn)) => attachment.set_filter(filter, turn),
            (Some(Attachment::Packet(attachment)), _) => attachment.set_filter(filter),
            (Some(Attachment::Xdp(_)) | None, _) => Err(FilterChangeError::Stopped),
        }
    }

    /// Says so if user space filters all packets.
    fn warning(&self) -> Option<Warning> {
        let (reason, taken) = match self.attachment.as_ref()? {
            Attachment::Xdp(attachment) => (attachment.filters_in_user_space()?, true),
            Attachment::Packet(attachment) => (attachment.filters_in_user_space()?, false),
        };
        let interface = self.target.device.name.clone();
        Some(Warning::FilteredInUserSpace { interface, reason: reason.to_owned(), taken })
    }
}

impl Running {
    /// What is to be known of the interfaces' filters.
    pub(super) fn filter_warnings(&self) -> impl Iterator<Item = Warning> {
        self.interfaces.iter().filter_map(Attached::warning)
    }
}
