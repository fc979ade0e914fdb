//! A query, and the pieces that it can exclude.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use wirecap_filter::{CompiledFilter, Context, Filter, FilterError, FilterRequest, Need, Unsupported};
use wirecap_savefile::{LinkType, Record, Timestamp};

use crate::flow::{Between, Flow, Headers};
use crate::row::Row;
use crate::segment::Piece;
use crate::table::{Layout, Table, Wanted};

/// Link types that expressions are written for: Ethernet, raw IP, Linux "cooked", 802.11 without and with radiotap.
const LINK_TYPES: [LinkType; 5] =
    [LinkType::ETHERNET, LinkType::RAW, LinkType::LINUX_SLL2, LinkType(105), LinkType(127)];

/// The packets to be found.
#[derive(Debug, Default)]
pub struct Query {
    filter: Option<FilterRequest>,
    between: Option<Between>,
    /// Nanoseconds since the epoch.
    from: u64,
    /// The first nanosecond after the period.
    to: u64,
    compiled: HashMap<LinkType, (Filter, CompiledFilter)>,
    /// The values that are looked up in Bloom filters, by layout.
    wanted: HashMap<Layout, Vec<Wanted>>,
}

/// The reason why packets of a link type cannot be searched.
#[derive(Debug)]
pub enum QueryError {
    /// The filter does not exist for this link type.
    Filter(FilterError),
    /// The filter reads data that a savefile does not contain.
    Unsupported(Unsupported),
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(error) => error.fmt(f),
            Self::Unsupported(error) => error.fmt(f),
        }
    }
}

impl Error for QueryError {}

impl Query {
    /// Packets that `filter` matches, of flows `between` two ends, from a time on and before another, in nanoseconds since the
    /// epoch.
    pub fn new(
        filter: Option<FilterRequest>,
        between: Option<Between>,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Self {
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
        Self { filter, between, from, to, ..Self::default() }
    }

    /// Checks that the filter is valid for packets of at least one link type that expressions are written for.
    ///
    /// # Errors
    ///
    /// [`QueryError`] for Ethernet.
    pub fn check(&mut self) -> Result<(), QueryError> {
        match LINK_TYPES.into_iter().any(|link_type| self.prepare(link_type).is_ok()) {
            true => Ok(()),
            false => self.prepare(LinkType::ETHERNET),
        }
    }

    /// The filter for a link type.
    fn prepare(&mut self, link_type: LinkType) -> Result<(), QueryError> {
        let Some(request) = &self.filter else { return Ok(()) };
        if let Entry::Vacant(entry) = self.compiled.entry(link_type) {
            let filter = request.compile(link_type).map_err(QueryError::Filter)?;
            let compiled = CompiledFilter::for_file(&filter).map_err(QueryError::Unsupported)?;
            entry.insert((filter, compiled));
        }
        Ok(())
    }

    /// Whether the query covers times from `earliest` to `latest`.
    pub(crate) fn is_in_time(&self, earliest: u64, latest: u64) -> bool {
        latest >= self.from && earliest < self.to
    }

    pub(crate) fn may_be_in_piece(&self, piece: &Piece) -> bool {
        piece.packets > 0 && self.is_in_time(piece.earliest, piece.latest)
    }

    /// Whether a row of the table may match, by its Bloom filters.
    pub(crate) fn may_be_in(&mut self, table: &Table) -> Result<bool, QueryError> {
        // A row of unknown flow may contain any flow.
        let has_unknown = table.layouts.as_ref().is_none_or(|layouts| {
            layouts.iter().any(|layout| layout.flow == Flow::unknown(layout.flow.link_type))
        });
        if let Some(Between(a, b)) = self.between.filter(|_| !has_unknown) {
            let wanted = [(a, b), (b, a)].map(|(source, destination)| Wanted {
                source: Some(source.address),
                destination: Some(destination.address),
                ports: (source.port, destination.port),
            });
            if !wanted.iter().any(|wanted| table.may_have(wanted)) {
                return Ok(false);
            }
        }
        let Some(layouts) = table.layouts.as_ref().filter(|_| self.filter.is_some()) else { return Ok(true) };
        for layout in layouts {
            if self.wanted_of(*layout)?.iter().any(|wanted| table.may_have(wanted)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The alternatives of which rows of a layout must meet one: none if they cannot match.
    fn wanted_of(&mut self, layout: Layout) -> Result<&[Wanted], QueryError> {
        if !self.wanted.contains_key(&layout) {
            self.prepare(layout.flow.link_type)?;
            let mut wanted = vec![Wanted::default()];
            if let Some((filter, _)) = self.compiled.get(&layout.flow.link_type) {
                let sketch =
                    layout.flow.layout_sketch(layout.captured_max, layout.wire_min..=layout.wire_max);
                if let Some(needs) = filter.needs(&sketch) {
                    wanted = needs.iter().map(|needs| wanted_by(&layout.flow, needs)).collect();
                    wanted.dedup();
                }
            }
            self.wanted.insert(layout, wanted);
        }
        Ok(&self.wanted[&layout])
    }

    /// Returns the numbers of the pieces with packets of the row that may match.
    pub(crate) fn pieces_of_row(&mut self, row: &Row, select: &mut dyn FnMut(u32)) -> Result<(), QueryError> {
        // A row of unknown flow may contain this flow.
        let is_unknown = row.flow == Flow::unknown(row.flow.link_type);
        let is_between = is_unknown || self.between.is_none_or(|between| between.has(&row.flow));
        if !is_between || !self.is_in_time(row.first, row.last) {
            return Ok(());
        }
        self.prepare(row.flow.link_type)?;
        let filter = self.compiled.get(&row.flow.link_type);
        let may_have = |flags| {
            filter.is_none_or(|(filter, _)| {
                row.sketches_with(flags).iter().any(|sketch| filter.can_match(sketch))
            })
        };
        if !may_have(row.tcp_flags) {
            return Ok(());
        }
        // Most parts have the same flags.
        let mut looked = vec![(row.tcp_flags, true)];
        for part in &row.parts {
            let known = looked.iter().find(|(flags, _)| *flags == part.tcp_flags).map(|(_, may)| *may);
            let may = known.unwrap_or_else(|| {
                let may = may_have(part.tcp_flags);
                looked.push((part.tcp_flags, may));
                may
            });
            if may {
                select(part.piece);
            }
        }
        Ok(())
    }

    /// Whether this packet matches.
    pub(crate) fn matches(&mut self, link_type: LinkType, record: &Record<'_>) -> Result<bool, QueryError> {
        let nanos = record.timestamp.map_or(0, Timestamp::unix_nanos);
        if nanos < self.from || nanos >= self.to {
            return Ok(false);
        }
        self.prepare(link_type)?;
        if let Some((_, compiled)) = self.compiled.get(&link_type)
            && compiled.matches(record.data, record.wire_len, &Context::default()) == 0
        {
            return Ok(false);
        }
        Ok(self.between.is_none_or(|between| between.has(&Headers::of(link_type, record.data).flow)))
    }
}

/// The values that the columns of a row need if its packets can match.
fn wanted_by(layout: &Flow, needs: &[Need]) -> Wanted {
    let Some(places) = layout.places() else { return Wanted::default() };
    let at = |offset: usize, byte_count: u32| {
        let is_there = |need: &&Need| need.offset as usize == offset && need.byte_count == byte_count;
        needs.iter().find(is_there).map(|need| need.value)
    };
    let address = |place: usize, is_there: bool| -> Option<IpAddr> {
        if !is_there {
            return None;
        }
        if places.address_bytes == 4 {
            return at(place, 4).map(|word| IpAddr::from(word.to_be_bytes()));
        }
        let mut address = 0_u128;
        for word in 0..4 {
            address = address << 32 | u128::from(at(place + 4 * word, 4)?);
        }
        Some(Ipv6Addr::from(address).into())
    };
    let port = |behind: usize| {
        let place = places.ports.filter(|_| layout.ports.is_some())?;
        at(place + behind, 2).and_then(|port| u16::try_from(port).ok())
    };
    Wanted {
        source: address(places.source, layout.source.is_some()),
        destination: address(places.destination, layout.destination.is_some()),
        ports: (port(0), port(2)),
    }
}
