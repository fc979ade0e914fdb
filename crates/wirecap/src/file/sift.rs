//! The filter of a savefile: compiled for each of its interfaces, whose packets may be of different
//! kinds.

use std::collections::HashMap;

use crate::error::FilterChangeError;
use crate::filter::{CompiledFilter, Context, FilterRequest};
use crate::savefile::{LinkType, Record};

/// The filter of a savefile.
#[derive(Debug, Default)]
pub(super) struct Sift {
    request: Option<FilterRequest>,
    /// By the interface's number.
    filters: HashMap<u32, CompiledFilter>,
    pub(super) filtered: u64,
}

impl Sift {
    /// The filter of `request`, before any interface of the file is known.
    pub(super) fn new(request: FilterRequest) -> Self {
        Self { request: Some(request), ..Self::default() }
    }

    /// Continues the counts of `before`.
    pub(super) fn after(self, before: &Self) -> Self {
        Self { filtered: before.filtered, ..self }
    }

    /// Compiles the filter for an interface of the file.
    pub(super) fn learn(
        &mut self,
        interface: u32,
        link_type: LinkType,
        path: &str,
    ) -> Result<(), FilterChangeError> {
        if let Some(request) = &self.request {
            let filter = request.compile_for_file(link_type)?;
            let unsupported =
                |source| FilterChangeError::Unsupported { interface: path.to_owned(), source };
            self.filters.insert(interface, CompiledFilter::for_file(&filter).map_err(unsupported)?);
        }
        Ok(())
    }

    /// Whether the record's interface is known.
    pub(super) fn knows(&self, interface: u32) -> bool {
        self.request.is_none() || self.filters.contains_key(&interface)
    }

    /// Whether the filter accepts the record, whose interface is known. Counts it if not.
    pub(super) fn accepts(&mut self, record: &Record<'_>) -> bool {
        self.accepts_bytes(record.interface, record.data, record.wire_len)
    }

    pub(super) fn accepts_bytes(&mut self, interface: u32, data: &[u8], wire_len: u32) -> bool {
        let wanted = self
            .filters
            .get(&interface)
            .is_none_or(|filter| filter.matches(data, wire_len, &Context::default()) > 0);
        self.filtered += u64::from(!wanted);
        wanted
    }
}
