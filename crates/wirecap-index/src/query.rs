//! A query, and the pieces that it can exclude.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};

use wirecap_filter::{
    CompiledFilter, Context, Filter, FilterError, FilterRequest, Need, Unsupported,
};
use wirecap_savefile::{LinkType, Record, Timestamp};

use crate::blocks::Damaged;
use crate::flow::{Between, Ends, Flow};
use crate::row::{Index, Part, Row};
use crate::segment::Piece;
use crate::table::{Layout, Table, Wanted};

/// Link types that expressions are written for: Ethernet, raw IP, Linux "cooked", 802.11 without
/// and with radiotap.
const LINK_TYPES: [LinkType; 5] =
    [LinkType::ETHERNET, LinkType::RAW, LinkType::LINUX_SLL2, LinkType(105), LinkType(127)];

/// The packets to be found.
#[derive(Debug, Default)]
pub struct Query {
    filter: Option<FilterRequest>,
    /// Conditions: the flow of a matching packet has at least one of the ends of each condition.
    ends: Vec<Vec<Ends>>,
    /// Nanoseconds since the epoch.
    from: u64,
    /// The first nanosecond after the period.
    to: u64,
    compiled: Vec<Compiled>,
    /// The values that are looked up in indexes, by layout.
    wanted: HashMap<Layout, Vec<Wanted>>,
}

/// The filter for a link type.
#[derive(Debug)]
struct Compiled {
    link_type: LinkType,
    /// Runs on the sketches of rows.
    filter: Filter,
    /// Runs on packets.
    program: CompiledFilter,
}

/// The reason why packets of a link type cannot be searched.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The filter does not exist for this link type.
    #[error(transparent)]
    Filter(FilterError),
    /// The filter reads data that a savefile does not contain.
    #[error(transparent)]
    Unsupported(Unsupported),
}

impl Query {
    /// Packets that `filter` matches, of flows `between` two ends, from a time on and before
    /// another, in nanoseconds since the epoch.
    pub fn new(
        filter: Option<FilterRequest>,
        between: Option<Between>,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Self {
        let from = from.unwrap_or(0);
        let to = to.unwrap_or(u64::MAX);
        let ends = between.map(|between| between.flows().to_vec()).into_iter().collect();
        Self { filter, ends, from, to, ..Self::default() }
    }

    /// The packets of this query whose flows also have one of the `ends` of each condition.
    #[must_use]
    pub fn with_ends(mut self, conditions: impl IntoIterator<Item = Vec<Ends>>) -> Self {
        self.ends.extend(conditions);
        self
    }

    /// Checks that the filter is valid for packets of at least one link type that expressions are
    /// written for.
    ///
    /// # Errors
    ///
    /// [`QueryError`] for Ethernet.
    pub fn check(&mut self) -> Result<(), QueryError> {
        match LINK_TYPES.into_iter().any(|link_type| self.compiled(link_type).is_ok()) {
            true => Ok(()),
            false => self.compiled(LinkType::ETHERNET).map(|_| ()),
        }
    }

    /// The filter for a link type; `None` if the query has no filter.
    fn compiled(&mut self, link_type: LinkType) -> Result<Option<&Compiled>, QueryError> {
        let Some(request) = &self.filter else { return Ok(None) };

        // Few link types are searched at once.
        let place = match self.compiled.iter().position(|compiled| compiled.link_type == link_type)
        {
            Some(place) => place,
            None => {
                let filter = request.compile_for_file(link_type).map_err(QueryError::Filter)?;
                let program = CompiledFilter::for_file(&filter).map_err(QueryError::Unsupported)?;
                self.compiled.push(Compiled { link_type, filter, program });
                self.compiled.len() - 1
            }
        };
        Ok(Some(&self.compiled[place]))
    }

    /// Whether the query covers times from `earliest` to `latest`.
    pub(crate) fn is_in_time(&self, earliest: u64, latest: u64) -> bool {
        #[cfg(sabotage)]
        if crate::sabotage::is("to-inclusive") {
            return latest >= self.from && earliest <= self.to;
        }
        latest >= self.from && earliest < self.to
    }

    pub(crate) fn may_be_in_piece(&self, piece: &Piece) -> bool {
        piece.packets > 0 && self.is_in_time(piece.earliest, piece.latest)
    }

    /// Reads the rows of an index that may match, and only the parts of the file that contain such
    /// rows.
    ///
    /// # Errors
    ///
    /// [`QueryError`] if the filter does not apply to packets of the segment, and [`Damaged`] if a
    /// part that was read is invalid; both converted to `E`.
    pub fn index<E: From<QueryError> + From<Damaged>>(&mut self, table: Table) -> Result<Index, E> {
        let conditions = self.conditions(&table)?;
        if !table.summary.pieces.iter().any(|piece| self.may_be_in_piece(piece)) {
            return Ok(table.without_rows());
        }
        table.index_where(&conditions, &mut |row| Ok(self.may_match(row)?))
    }

    /// Conditions on the addresses and ports of rows that may match: of each, rows meet one
    /// alternative.
    fn conditions(&mut self, table: &Table) -> Result<Vec<Vec<Wanted>>, QueryError> {
        let mut conditions = Vec::new();

        // A row of unknown flow may contain any flow.
        let has_unknown = || {
            let layouts = table.layouts.as_ref();
            layouts.is_none_or(|layouts| layouts.iter().any(|layout| layout.flow.is_unknown()))
        };

        for ends in &self.ends {
            let mut alternatives: Vec<Wanted> = ends.iter().map(Wanted::of).collect();
            if has_unknown() {
                alternatives.push(Wanted { is_without_addresses: true, ..Wanted::default() });
            }
            conditions.push(alternatives);
        }

        if let Some(layouts) = table.layouts.as_ref().filter(|_| self.filter.is_some()) {
            let mut alternatives = BTreeSet::new();
            for layout in layouts {
                alternatives.extend(self.wanted_of(*layout)?.iter().cloned());
            }
            if !alternatives.contains(&Wanted::default()) {
                conditions.push(alternatives.into_iter().collect());
            }
        }

        Ok(conditions)
    }

    /// The alternatives of which rows of a layout must meet one: none if they cannot match.
    fn wanted_of(&mut self, layout: Layout) -> Result<&[Wanted], QueryError> {
        if !self.wanted.contains_key(&layout) {
            let is_without_addresses = layout.flow.places().is_none();
            let mut wanted = vec![Wanted { is_without_addresses, ..Wanted::default() }];

            if let Some(Compiled { filter, .. }) = self.compiled(layout.flow.link_type)? {
                let sketch = layout
                    .flow
                    .layout_sketch(layout.captured_max, layout.wire_min..=layout.wire_max);
                if let Some(needs) = filter.needs(&sketch) {
                    wanted = needs.iter().map(|needs| wanted_by(&layout.flow, needs)).collect();
                    wanted.dedup();
                }
            }
            self.wanted.insert(layout, wanted);
        }
        Ok(&self.wanted[&layout])
    }

    /// Whether packets of the row may match.
    pub(crate) fn may_match(&mut self, row: &Row) -> Result<bool, QueryError> {
        // A row of unknown flow may contain this flow.
        let may_have = row.flow.is_unknown() || self.has(&row.flow);
        #[cfg(sabotage)]
        let may_have =
            may_have && (!crate::sabotage::is("unknown-flow-rows-pruned") || self.has(&row.flow));
        if !may_have || !self.is_in_time(row.first, row.last) {
            return Ok(false);
        }
        Ok(self
            .compiled(row.flow.link_type)?
            .is_none_or(|compiled| compiled.may_match(row, row.tcp_flags)))
    }

    /// The parts with packets that may match, of a row that may match.
    pub(crate) fn parts_of<'a>(&mut self, row: &'a Row) -> Result<Vec<&'a Part>, QueryError> {
        let Some(compiled) = self.compiled(row.flow.link_type)? else {
            return Ok(row.parts.iter().collect());
        };

        // Most parts have the same flags.
        let mut looked = vec![(row.tcp_flags, true)];
        let mut may_match = |part: &&Part| {
            let known =
                looked.iter().find(|(flags, _)| *flags == part.tcp_flags).map(|(_, may)| *may);
            known.unwrap_or_else(|| {
                let may = compiled.may_match(row, part.tcp_flags);
                looked.push((part.tcp_flags, may));
                may
            })
        };
        Ok(row.parts.iter().filter(|part| may_match(part)).collect())
    }

    /// Whether this packet matches.
    pub(crate) fn matches(
        &mut self,
        link_type: LinkType,
        record: &Record<'_>,
    ) -> Result<bool, QueryError> {
        let nanos = record.timestamp.map_or(0, Timestamp::unix_nanos);
        #[cfg(sabotage)]
        if crate::sabotage::is("to-inclusive") {
            self.to += u64::from(nanos == self.to);
        }
        if nanos < self.from || nanos >= self.to {
            return Ok(false);
        }

        #[cfg(sabotage)]
        let link_type = if crate::sabotage::is("filter-for-the-wrong-link-type") {
            LinkType::ETHERNET
        } else {
            link_type
        };
        if let Some(Compiled { program, .. }) = self.compiled(link_type)?
            && program.matches(record.data, record.wire_len, &Context::default()) == 0
        {
            return Ok(false);
        }

        Ok(self.ends.is_empty() || self.has(&Flow::of_packet(link_type, record.data)))
    }

    /// Whether packets of this link type cannot match, because the query names addresses or ports,
    /// and packets of the link type are not dissected.
    pub(crate) fn is_blind_to(&self, link_type: LinkType) -> bool {
        !self.ends.is_empty() && !Flow::is_in(link_type)
    }

    /// Whether a flow has one of the ends of each condition.
    fn has(&self, flow: &Flow) -> bool {
        self.ends.iter().all(|ends| ends.iter().any(|ends| ends.has(flow)))
    }
}

impl Compiled {
    /// Whether packets of the row with these flags may match.
    fn may_match(&self, row: &Row, tcp_flags: Option<(u8, u8)>) -> bool {
        row.sketches_with(tcp_flags).iter().any(|sketch| self.filter.can_match(sketch))
    }
}

/// The values that the columns of a row must have if its packets can match.
fn wanted_by(layout: &Flow, needs: &[Need]) -> Wanted {
    let Some(places) = layout.places() else {
        return Wanted { is_without_addresses: true, ..Wanted::default() };
    };
    let at = |offset: usize, byte_count: u32| {
        let is_there =
            |need: &&Need| need.offset as usize == offset && need.byte_count == byte_count;
        needs.iter().find(is_there).map(|need| need.value)
    };

    let address = |place: usize, is_there: bool| -> Option<String> {
        if !is_there {
            return None;
        }
        if places.address_bytes == 4 {
            return at(place, 4).map(|word| Ipv4Addr::from(word).to_string());
        }

        let mut address = 0_u128;
        for word in 0..4 {
            address = address << 32 | u128::from(at(place + 4 * word, 4)?);
        }

        Some(Ipv6Addr::from(address).to_string())
    };
    let port = |behind: usize| {
        let place = places.ports.filter(|_| layout.ports.is_some())?;
        at(place + behind, 2).and_then(|port| u16::try_from(port).ok())
    };
    Wanted {
        source: address(places.source, layout.source.is_some()),
        destination: address(places.destination, layout.destination.is_some()),
        ports: (port(0), port(2)),
        is_without_addresses: false,
    }
}
