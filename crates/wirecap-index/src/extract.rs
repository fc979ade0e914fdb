//! Writes packets that were found into a savefile.

use std::fmt;

use wirecap_savefile::{Interface, PACKET_BYTES_MAX, Sink, WriteError, Writer};

use crate::find::{FindError, Found, Item, Note, Outcome, Plan};
use crate::query::Query;
use crate::storage::Storage;

impl Plan {
    /// Finds packets as [`run_in`](Self::run_in), writes them with `writer`, and ends the savefile.
    /// `None` if its reader closed the pipe before the last packet was found.
    ///
    /// # Errors
    ///
    /// [`FindError`] and [`WriteError`], converted to `E`.
    pub fn extract<S: Sink, E: From<FindError> + From<WriteError>>(
        &self,
        storage: &dyn Storage,
        query: &mut Query,
        note: &mut dyn FnMut(Note<'_>) -> bool,
        writer: Writer<S>,
    ) -> Result<Option<Outcome>, E> {
        let mut extract = Extract::new(writer);
        let mut is_closed = false;

        let outcome =
            self.run_whole(storage, query, note, &mut |item| match extract.write_item(&item) {
                Err(WriteError::BrokenPipe { .. }) => {
                    is_closed = true;
                    Ok(false)
                }
                written => written.map(|()| true).map_err(E::from),
            })?;
        if is_closed {
            return Ok(None);
        }

        match extract.end() {
            Ok(()) | Err(WriteError::BrokenPipe { .. }) => Ok(Some(outcome)),
            Err(error) => Err(error.into()),
        }
    }
}

/// A savefile of packets that were found.
pub struct Extract<S: Sink> {
    writer: Writer<S>,
    interfaces: u32,
}

impl<S: Sink> fmt::Debug for Extract<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extract").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

impl<S: Sink> Extract<S> {
    /// A savefile without packets.
    pub fn new(writer: Writer<S>) -> Self {
        Self { writer, interfaces: 0 }
    }

    /// Writes a packet, after its interface if this is the interface's first packet.
    ///
    /// # Errors
    ///
    /// [`WriteError`].
    pub fn write(&mut self, found: &Found<'_>) -> Result<(), WriteError> {
        self.add_interface_of(found)?;
        self.writer.write(&found.record)
    }

    fn write_item(&mut self, item: &Item<'_>) -> Result<(), WriteError> {
        match item {
            Item::Packet(found, options) => {
                self.add_interface_of(found)?;
                self.writer.write_with_options(&found.record, options)
            }
            Item::Block(block) => self.writer.write_block(block),
            Item::Statistics(statistics) => self.writer.statistics(statistics),
        }
    }

    /// Adds the interface of a packet that is its first one.
    fn add_interface_of(&mut self, found: &Found<'_>) -> Result<(), WriteError> {
        if found.record.interface != self.interfaces {
            return Ok(());
        }
        let mut interface = found.interface.clone();
        if found.record.timestamp.is_some_and(|timestamp| timestamp.unix_nanos() > 0) {
            // Without a name of the clock, the file would state that its packets have no times.
            interface.time_source.get_or_insert_with(|| "as in the recording".to_owned());
        }
        self.add_interface(&interface)
    }

    /// All interfaces get the same snapshot length: libpcap rejects a file whose interfaces have
    /// different ones.
    fn add_interface(&mut self, interface: &Interface) -> Result<(), WriteError> {
        self.writer
            .add_interface(&Interface { snap_len: PACKET_BYTES_MAX, ..interface.clone() })?;
        self.interfaces += 1;
        Ok(())
    }

    /// Ends the savefile.
    ///
    /// # Errors
    ///
    /// [`WriteError`].
    pub fn end(mut self) -> Result<(), WriteError> {
        if self.interfaces == 0 {
            // Other programs reject a file without an interface.
            self.add_interface(&Interface::default())?;
        }
        self.writer.finish().map(drop)
    }
}
