package penstock.spark

import java.util

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.connector.catalog.{Column => TableColumn, SupportsRead, TableCapability}
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonInputPartition, PythonTable}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sources.Filter
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Spark extension (`spark.sql.extensions`) that reads batches of `format("penstock")` in a folder without Python. */
class Extension extends (SparkSessionExtensions => Unit) {
  // These rules run last before Spark asks its sources for scans.
  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectPreCBORule(_ => ReadFoldersHere)
}

object ReadFoldersHere extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = plan.transform { case relation: DataSourceV2Relation =>
    relation.table match {
      case table: PythonTable if table.name.equalsIgnoreCase("penstock") && Schemas.known(table.schema) =>
        relation.copy(table = new FolderTable(table))
      case _ => relation
    }
  }
}

/** Wraps the Python source, which still decides about options, offsets, partitions and errors. */
class FolderTable(python: PythonTable) extends SupportsRead {
  override def name: String = python.name
  override def columns: Array[TableColumn] = python.columns
  override def capabilities: util.Set[TableCapability] = python.capabilities
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = new FolderScanBuilder(python, options)
}

/**
 * Prunes columns by narrowing the table's schema, the only way to pass the needed columns to a Python source.
 *
 * Filters are hints for the Python source, which prunes offsets; Spark applies all of them to the rows. A scan with
 * hints has a source of its own, because a Python source keeps the plan of its first scan for all others.
 */
class FolderScanBuilder(python: PythonTable, options: CaseInsensitiveStringMap)
    extends SupportsPushDownRequiredColumns with SupportsPushDownFilters {
  private var schema = python.schema
  private var hints = Array.empty[Filter]

  override def pushFilters(filters: Array[Filter]): Array[Filter] = {
    hints = filters
    filters
  }

  override def pushedFilters: Array[Filter] = Array.empty

  override def pruneColumns(required: StructType): Unit =
    schema = if (required.isEmpty) StructType(python.schema.take(1)) else required

  override def build(): Scan =
    if (hints.isEmpty && schema.length == python.schema.length) new FolderScan(python.newScanBuilder(options).build())
    else {
      val source = new PythonDataSourceV2
      source.setShortName(python.name)
      val settings = if (hints.isEmpty) options else Pushing.option(options)
      val builder = source.getTable(schema, Array.empty, settings).asInstanceOf[PythonTable].newScanBuilder(settings)
      builder match {
        case pushing: SupportsPushDownFilters if hints.nonEmpty => Pushing.enabled(pushing.pushFilters(hints))
        case _ =>
      }
      new FolderScan(builder.build())
    }
}

/** Enables filters for our source alone: for others, a session's setting decides. */
object Pushing {
  private val Setting = "spark.sql.python.filterPushdown.enabled"

  def option(options: CaseInsensitiveStringMap): CaseInsensitiveStringMap = {
    val more = new util.HashMap[String, String](options.asCaseSensitiveMap)
    more.put("pushFilters", "true")
    new CaseInsensitiveStringMap(more)
  }

  def enabled[T](plan: => T): T = {
    val conf = SQLConf.get.clone()
    conf.setConfString(Setting, "true")
    SQLConf.withExistingConf(conf)(plan)
  }
}

class FolderScan(python: Scan) extends Scan {
  private lazy val batch = new FolderBatch(this, python.toBatch)

  override def readSchema: StructType = python.readSchema
  override def description: String = python.description + ", read by Java"
  override def supportedCustomMetrics = python.supportedCustomMetrics
  override def reportDriverMetrics = python.reportDriverMetrics
  override def toBatch: Batch = batch
}

class FolderBatch(scan: FolderScan, python: Batch) extends Batch {
  override def planInputPartitions: Array[InputPartition] = {
    val planned = Pushing.enabled(python.planInputPartitions)
    val found = planned.flatMap {
      case each: PythonInputPartition => FolderRange.of(each.pickedPartition).map(FolderPartition(each, _))
      case _ => None
    }
    // Spark requires the same kind of reader for all partitions.
    if (found.length == planned.length) found.toArray[InputPartition] else planned
  }

  override def createReaderFactory: PartitionReaderFactory =
    new FolderReaderFactory(scan.readSchema, python.createReaderFactory)
}

case class FolderPartition(python: PythonInputPartition, range: FolderRange) extends InputPartition
