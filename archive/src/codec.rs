//! How plans with the tables of an archive are sent to a cluster: extensions of Ballista's codecs.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use ballista_core::serde::{BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec};
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, internal_err};
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::message::{self, Content};
use crate::node::Node;
use crate::scan::Scan;
use crate::table::ArchiveTable;

/// Tables of logical plans, which clients send to the scheduler.
#[derive(Default)]
pub(crate) struct LogicalCodec {
    of_ballista: BallistaLogicalExtensionCodec,
    /// The scheduler; clients receive no plans.
    node: Option<Arc<Node>>,
}

impl LogicalCodec {
    pub(crate) fn of(node: &Arc<Node>) -> Self {
        Self { node: Some(Arc::clone(node)), ..Self::default() }
    }
}

impl fmt::Debug for LogicalCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalCodec").field("node", &self.node).finish_non_exhaustive()
    }
}

impl LogicalExtensionCodec for LogicalCodec {
    fn try_decode(
        &self,
        buffer: &[u8],
        inputs: &[LogicalPlan],
        context: &TaskContext,
    ) -> Result<Extension> {
        self.of_ballista.try_decode(buffer, inputs, context)
    }

    fn try_encode(&self, node: &Extension, buffer: &mut Vec<u8>) -> Result<()> {
        self.of_ballista.try_encode(node, buffer)
    }

    fn try_decode_table_provider(
        &self,
        buffer: &[u8],
        table: &TableReference,
        schema: SchemaRef,
        context: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        let Some(node) = &self.node else { return internal_err!("a client received a plan") };
        match message::decode(buffer, node.name())? {
            Some(Content::Table(message)) => {
                Ok(Arc::new(ArchiveTable::from_message(message, node)?))
            }
            Some(Content::Scan(_)) => internal_err!("a scan in a logical plan"),
            None => self.of_ballista.try_decode_table_provider(buffer, table, schema, context),
        }
    }

    fn try_encode_table_provider(
        &self,
        table: &TableReference,
        provider: Arc<dyn TableProvider>,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        match provider.downcast_ref::<ArchiveTable>() {
            Some(of_archive) => message::encode(Content::Table(of_archive.message()?), buffer),
            None => self.of_ballista.try_encode_table_provider(table, provider, buffer)?,
        }
        Ok(())
    }

    fn try_decode_file_format(
        &self,
        buffer: &[u8],
        context: &TaskContext,
    ) -> Result<Arc<dyn FileFormatFactory>> {
        self.of_ballista.try_decode_file_format(buffer, context)
    }

    fn try_encode_file_format(
        &self,
        buffer: &mut Vec<u8>,
        format: Arc<dyn FileFormatFactory>,
    ) -> Result<()> {
        self.of_ballista.try_encode_file_format(buffer, format)
    }
}

/// Scans of physical plans, which the scheduler sends to executors.
pub(crate) struct PhysicalCodec {
    of_ballista: BallistaPhysicalExtensionCodec,
    node: Arc<Node>,
}

impl PhysicalCodec {
    pub(crate) fn of(node: &Arc<Node>) -> Self {
        Self { of_ballista: BallistaPhysicalExtensionCodec::default(), node: Arc::clone(node) }
    }
}

impl fmt::Debug for PhysicalCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalCodec").field("node", &self.node).finish_non_exhaustive()
    }
}

impl PhysicalExtensionCodec for PhysicalCodec {
    fn try_decode(
        &self,
        buffer: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match message::decode(buffer, self.node.name())? {
            Some(Content::Scan(message)) => match inputs {
                [jobs] => Ok(Arc::new(Scan::from_message(message, Arc::clone(jobs), &self.node)?)),
                _ => internal_err!("a scan has one input"),
            },
            Some(Content::Table(_)) => internal_err!("a table in a physical plan"),
            None => self.of_ballista.try_decode(buffer, inputs, context, converter),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buffer: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        match node.downcast_ref::<Scan>() {
            Some(scan) => message::encode(Content::Scan(scan.message()?), buffer),
            None => self.of_ballista.try_encode(node, buffer, converter)?,
        }
        Ok(())
    }
}
