//! The addresses and ports that a SQL condition requires. Indexes find the rows that have them by
//! Bloom filters, without reading the others.

use std::net::IpAddr;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use wirecap_index::Ends;

/// The maximum number of alternatives of a condition; one with more excludes nothing.
const ALTERNATIVES_MAX: usize = 64;

/// For each filter that restricts addresses or ports, its alternatives: flows for which all
/// `filters` are true have one alternative of each.
pub(crate) fn of(filters: &[Expr]) -> Vec<Vec<Ends>> {
    filters.iter().filter_map(alternatives).collect()
}

/// Flows for which `condition` is true have one of these; `None` if they may have any.
fn alternatives(condition: &Expr) -> Option<Vec<Ends>> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
            Some(vec![equal(left, right)?])
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            limited([alternatives(left)?, alternatives(right)?].concat())
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            match (alternatives(left), alternatives(right)) {
                (Some(left), Some(right)) => {
                    let both = left
                        .iter()
                        .flat_map(|left| right.iter().filter_map(|right| left.and(right)));
                    limited(both.collect()).or(Some(left))
                }
                (left, right) => left.or(right),
            }
        }
        Expr::InList(InList { expr, list, negated: false }) => {
            limited(list.iter().map(|value| equal(expr, value)).collect::<Option<_>>()?)
        }
        _ => None,
    }
}

fn limited(alternatives: Vec<Ends>) -> Option<Vec<Ends>> {
    (alternatives.len() <= ALTERNATIVES_MAX).then_some(alternatives)
}

/// The ends of flows for which a column and a value are equal; `None` if the operands are not a
/// column of ends and a value.
fn equal(one: &Expr, other: &Expr) -> Option<Ends> {
    let ((Expr::Column(column), Expr::Literal(value, _))
    | (Expr::Literal(value, _), Expr::Column(column))) = (one, other)
    else {
        return None;
    };
    let any = Ends::default();

    Some(match &*column.name {
        "src_addr" => Ends { source: Some(address(value)?), ..any },
        "dst_addr" => Ends { destination: Some(address(value)?), ..any },
        "src_port" => Ends { source_port: Some(port(value)?), ..any },
        "dst_port" => Ends { destination_port: Some(port(value)?), ..any },
        _ => return None,
    })
}

/// Columns have addresses in their canonical form; no row has another text.
fn address(value: &ScalarValue) -> Option<IpAddr> {
    let text = value.try_as_str()??;
    let address: IpAddr = text.parse().ok()?;
    (address.to_string() == text).then_some(address)
}

fn port(value: &ScalarValue) -> Option<u16> {
    if !value.data_type().is_integer() {
        return None;
    }
    match value.cast_to(&DataType::UInt16) {
        Ok(ScalarValue::UInt16(port)) => port,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    fn source(address: &str) -> Ends {
        Ends { source: Some(address.parse().unwrap()), ..Ends::default() }
    }

    #[test]
    fn conditions_on_addresses_and_ports_are_alternatives_of_flows() {
        let a = "10.0.0.1";
        let b = "10.0.0.2";
        let to =
            |address: &str| Ends { destination: Some(address.parse().unwrap()), ..Ends::default() };
        let between = |from: &str, with: &str| source(from).and(&to(with)).unwrap();
        let both_ways =
            (col("src_addr").eq(lit(a)).and(col("dst_addr").eq(lit(b))))
                .or(col("src_addr").eq(lit(b)).and(lit(a).eq(col("dst_addr"))));
        assert_eq!(alternatives(&both_ways), Some(vec![between(a, b), between(b, a)]));

        let https = Ends { destination_port: Some(443), ..Ends::default() };
        assert_eq!(alternatives(&col("dst_port").eq(lit(443_i64))), Some(vec![https]));

        let listed = col("src_addr").in_list(vec![lit(a), lit(b)], false);
        assert_eq!(alternatives(&listed), Some(vec![source(a), source(b)]));

        let host = lit(a).in_list(vec![col("src_addr"), col("dst_addr")], false);
        assert_eq!(alternatives(&host), Some(vec![source(a), to(a)]));

        let with_other = col("src_addr").eq(lit(a)).and(col("length").gt(lit(100)));
        assert_eq!(alternatives(&with_other), Some(vec![source(a)]));

        let contradiction = col("src_addr").eq(lit(a)).and(col("src_addr").eq(lit(b)));
        assert_eq!(alternatives(&contradiction), Some(Vec::new()));
        assert_eq!(of(&[with_other, listed]), [vec![source(a)], vec![source(a), source(b)]]);
    }

    #[test]
    fn other_conditions_exclude_no_flow() {
        let address = || col("src_addr").eq(lit("10.0.0.1"));
        for condition in [
            address().or(col("length").gt(lit(100))),
            !address(),
            col("src_addr").not_eq(lit("10.0.0.1")),
            col("src_addr").in_list(vec![lit("10.0.0.1")], true),
            col("src_addr").in_list(vec![lit("10.0.0.1"), col("dst_addr")], false),
            col("src_addr").eq(lit("fe80::0:1")),
            col("src_addr").eq(lit("example.com")),
            col("src_addr").eq(lit(ScalarValue::Utf8(None))),
            col("src_port").eq(lit(70_000)),
            col("src_port").eq(lit(443.5)),
            col("src_port").eq(col("dst_port")),
            col("protocol").eq(lit(6)),
            col("src_port").in_list((0..65).map(lit).collect(), false),
        ] {
            assert_eq!(alternatives(&condition), None, "{condition}");
        }
    }
}
