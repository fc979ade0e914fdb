//! The filter of a capture, changed while packets arrive.
//!
//! The kernel's filter is replaced in one step, then a membarrier waits for programs that still
//! run. Packets already in the ring passed the old filter, so in user space they must match both
//! filters; later packets must match the new one.

use super::{Attached, Attachment, Capture, Running};
use crate::device::{Device, DeviceSummary};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, FilterError, FilterRequest};
use crate::sync::lock;
use crate::warning::Warning;
use crate::xdp;

impl Capture {
    /// Replaces the filter on all interfaces; an empty expression matches all packets. Packets that
    /// match both filters are neither lost nor delivered twice, and chunks captured after the
    /// return contain matching packets only. Takes some milliseconds.
    ///
    /// # Errors
    ///
    /// [`FilterChangeError`] if the filter is invalid, or cannot run on packets of one of the
    /// interfaces. The filter is unchanged then, unless the kernel rejects it on an interface other
    /// than the first.
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

        let attached = running.interfaces.iter();
        let filters =
            attached.map(|attached| attached.compile(&request)).collect::<Result<Vec<_>, _>>()?;
        for ((attached, filters), turn) in running.interfaces.iter_mut().zip(&filters).zip(&turns) {
            attached.set_filter(filters, turn.as_ref())?;
            attached.target.filter = Some(request.clone());
            attached.tags_matter |= filters.iter().any(Filter::depends_on_tags);
        }

        Ok(())
    }
}

impl Capture {
    /// For each interface captured with `xdp`, the right to change the attached program. Waiting
    /// for it takes as long as other processes hold it, so the caller must not hold the capture's
    /// lock, which stopping the capture needs.
    pub(super) fn turns(&self) -> Result<Vec<Option<xdp::AttachLock>>, OpenError> {
        // An interface that was removed may have returned with another index, or have been handed
        // back to the host.
        let (places, mut devices) = {
            let running = lock(&self.shared.running);
            let devices = running.interfaces.iter().map(Attached::device_with_program).enumerate();
            let devices = devices.filter_map(|(place, device)| Some((place, device?)));
            (running.interfaces.len(), devices.collect::<Vec<_>>())
        };

        // In the same order in all processes, or two may wait for each other.
        devices.sort_unstable_by_key(|(_, device)| device.index);
        let mut turns: Vec<Option<xdp::AttachLock>> = (0..places).map(|_| None).collect();
        for (place, device) in devices {
            turns[place] = Some(xdp::wait_for_turn(&DeviceSummary::from(&device))?);
        }

        Ok(turns)
    }
}

impl Attached {
    /// Its device, if a program is attached to it.
    fn device_with_program(&self) -> Option<Device> {
        let has_program = matches!(self.attachment, Some(Attachment::Xdp(_)));
        has_program.then(|| self.target.device.clone())
    }

    /// The filter of `request`, for each link type if it stands for all interfaces.
    fn compile(&self, request: &FilterRequest) -> Result<Vec<Filter>, FilterError> {
        match (&self.attachment, &self.all) {
            (Some(Attachment::All(attachment)), Some(all)) => attachment.compile(all, request),
            _ => Ok(vec![self.target.device.compile(request)?]),
        }
    }

    fn set_filter(
        &mut self,
        filters: &[Filter],
        turn: Option<&xdp::AttachLock>,
    ) -> Result<(), FilterChangeError> {
        let filter = filters.first().ok_or(FilterChangeError::Stopped)?;
        match (&mut self.attachment, turn) {
            (Some(Attachment::All(attachment)), _) => attachment.set_filter(filters),
            (Some(Attachment::Xdp(attachment)), Some(turn)) => attachment.set_filter(filter, turn),
            (Some(Attachment::Packet(attachment)), _) => attachment.set_filter(filter),
            (Some(Attachment::Xdp(_)) | None, _) => Err(FilterChangeError::Stopped),
        }
    }

    /// A warning if user space filters all packets.
    fn warning(&self) -> Option<Warning> {
        let (reason, taken) = match self.attachment.as_ref()? {
            Attachment::Xdp(attachment) => (attachment.filters_in_user_space()?, true),
            Attachment::Packet(attachment) => (attachment.filters_in_user_space()?, false),
            Attachment::All(attachment) => (attachment.filters_in_user_space()?, false),
        };
        let interface = self.target.device.name.clone();
        Some(Warning::FilteredInUserSpace { interface, reason: reason.to_owned(), taken })
    }
}

impl Running {
    /// The warnings of the interfaces' filters.
    pub(super) fn filter_warnings(&self) -> impl Iterator<Item = Warning> {
        self.interfaces.iter().filter_map(Attached::warning)
    }
}
