//! `pcap_filter(expression)`: tcpdump's filter language as a SQL condition, by the compiled filter
//! of `wirecap-filter`.
//!
//! The function needs the packet: its link type, its length and its bytes. A statement names the
//! expression only; a rule adds the columns of the table `packets` that the statement reads.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use arrow::datatypes::{DataType, UInt16Type, UInt32Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, Result, ScalarValue, plan_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use wirecap_filter::{CompiledFilter, Context, FilterRequest, LinkType};
use wirecap_index::Query;

/// The function's name.
pub(crate) const NAME: &str = "pcap_filter";
/// The columns that the function reads, in this order.
const COLUMNS: [&str; 3] = ["link_type", "length", "data"];

/// The request for an expression that is valid for at least one link type.
pub(crate) fn request(expression: &str) -> Result<FilterRequest, String> {
    let request = FilterRequest::from(expression);
    let mut query = Query::new(Some(request.clone()), None, None, None);
    query.check().map(|()| request).map_err(|error| error.to_string())
}

fn compile(request: &FilterRequest, link_type: LinkType) -> Result<CompiledFilter, String> {
    let filter = request.compile_for_file(link_type).map_err(|error| error.to_string())?;
    CompiledFilter::for_file(&filter).map_err(|error| error.to_string())
}

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct PcapFilter {
    signature: Signature,
}

impl PcapFilter {
    pub(crate) fn new() -> Self {
        use DataType::{Binary, UInt16, UInt32, Utf8};
        let forms = vec![
            TypeSignature::Exact(vec![Utf8]),
            TypeSignature::Exact(vec![Utf8, UInt16, UInt32, Binary]),
        ];
        Self { signature: Signature::one_of(forms, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for PcapFilter {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(ScalarValue::Utf8(Some(expression))), columns @ ..] =
            &arguments.args[..]
        else {
            return plan_err!(
                "pcap_filter needs an expression as a literal: pcap_filter('tcp port 80')"
            );
        };
        let arrays = ColumnarValue::values_to_arrays(columns)?;
        let [link_types, lengths, data] = &arrays[..] else {
            return plan_err!("pcap_filter needs the columns of the table packets");
        };
        let link_types = link_types.as_primitive::<UInt16Type>();
        let lengths = lengths.as_primitive::<UInt32Type>();
        let data = data.as_binary::<i32>();
        let request = FilterRequest::from(&**expression);
        let mut compiled: HashMap<u16, CompiledFilter> = HashMap::new();
        let mut matches = Vec::with_capacity(data.len());

        for place in 0..data.len() {
            if link_types.is_null(place) || lengths.is_null(place) || data.is_null(place) {
                matches.push(None);
                continue;
            }

            let link_type = link_types.value(place);
            let filter = match compiled.entry(link_type) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(
                    compile(&request, LinkType(link_type)).map_err(DataFusionError::Execution)?,
                ),
            };
            let kept = filter.matches(data.value(place), lengths.value(place), &Context::default());
            matches.push(Some(kept > 0));
        }

        Ok(ColumnarValue::Array(Arc::new(BooleanArray::from(matches))))
    }
}

/// The expression, if this is a call with a literal.
pub(crate) fn expression_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == NAME => {
            match args.first() {
                Some(Expr::Literal(ScalarValue::Utf8(Some(text)), _)) => Some(text),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Adds the columns to calls that name only an expression, and rejects invalid expressions.
#[derive(Debug)]
pub(crate) struct AddColumns;

impl AnalyzerRule for AddColumns {
    fn name(&self) -> &str {
        "pcap_filter"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let analyzed = plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            let node = node.map_expressions(|expr| {
                let name = names.save(&expr);
                let expr = expr.transform_up(|expr| add_columns(expr, &schema))?;
                Ok(expr.update_data(|expr| name.restore(expr)))
            })?;
            node.map_data(LogicalPlan::recompute_schema)
        })?;
        Ok(analyzed.data)
    }
}

fn add_columns(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = &expr else {
        return Ok(Transformed::no(expr));
    };
    if func.name() != NAME {
        return Ok(Transformed::no(expr));
    }

    let Some(expression) = expression_of(&expr) else {
        return plan_err!(
            "pcap_filter needs an expression as a literal: pcap_filter('tcp port 80')"
        );
    };
    if let Err(error) = request(expression) {
        return plan_err!("pcap_filter: {error}");
    }
    if args.len() > 1 {
        return Ok(Transformed::no(expr));
    }

    let columns = |name: &str| {
        schema.columns().into_iter().filter(|column| column.name == name).collect::<Vec<_>>()
    };
    let tables = columns(COLUMNS[2]).into_iter().map(|column| column.relation);
    let mut complete = tables.filter(|table| {
        COLUMNS.iter().all(|name| columns(name).iter().any(|column| column.relation == *table))
    });
    let table = complete.next();
    let other = complete.next();

    let Some(table) = table else {
        return plan_err!(
            "pcap_filter needs the columns link_type, length and data: use it in a SELECT from the table packets"
        );
    };

    if other.is_some() {
        return plan_err!(
            "several tables have packets: use pcap_filter(expression, t.link_type, t.length, t.data) with one of them"
        );
    }

    let mut arguments = args.clone();
    arguments.extend(COLUMNS.map(|name| Expr::Column(Column::new(table.clone(), name))));

    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(func), arguments))))
}
