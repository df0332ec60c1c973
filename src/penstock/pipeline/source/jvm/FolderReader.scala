package penstock.spark

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.read.{InputPartition, PartitionReader, PartitionReaderFactory}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatch}
import org.slf4j.LoggerFactory

import scala.util.control.NonFatal

class FolderReaderFactory(schema: StructType, python: PartitionReaderFactory) extends PartitionReaderFactory {
  override def supportColumnarReads(partition: InputPartition): Boolean = partition.isInstanceOf[FolderPartition]

  override def createReader(partition: InputPartition): PartitionReader[InternalRow] = python.createReader(partition)

  override def createColumnarReader(partition: InputPartition): PartitionReader[ColumnarBatch] = {
    val found = partition.asInstanceOf[FolderPartition]
    new FolderReader(found.range, schema, from =>
      python.createReader(found.python.copy(pickedPartition = FolderRange.pickled(from, found.range.end))))
  }
}

/** Converts the records of a chunk to rows. */
trait Decoder {
  def columns: Array[Column]
  def rowsOf(record: Int): Int
  def fill(record: Int, row: Int): Unit
}

/** Reads a range of a log; on anything unexpected, Python reads the rest or reports the error. */
class FolderReader(range: FolderRange, schema: StructType, python: Long => PartitionReader[InternalRow])
    extends PartitionReader[ColumnarBatch] {
  import FolderReader._

  private var decoded: Decoded = _
  private var rest: PythonRows = _
  private var given = range.start
  private var batch: ColumnarBatch = _

  override def get(): ColumnarBatch = batch

  override def next(): Boolean = {
    if (rest == null) {
      try batch = decode()
      catch {
        case NonFatal(error) =>
          log.warn(s"Python reads offsets ${range.start} to ${range.end} of ${range.folder}: $error")
          rest = new PythonRows(schema, python(given))
      }
    }
    if (rest != null) batch = rest.next()
    batch != null
  }

  private def decode(): ColumnarBatch = {
    if (decoded == null) decoded = new Decoded(range, schema)
    val found = decoded.next()
    if (found != null) given = decoded.nextOffset
    found
  }

  override def close(): Unit = {
    if (decoded != null) decoded.close()
    if (rest != null) rest.close()
  }
}

object FolderReader {
  val BatchRows = 8192
  private val log = LoggerFactory.getLogger(classOf[FolderReader])
}

/** Returns batches of whole records, each within a chunk; null after the last. */
private class Decoded(range: FolderRange, schema: StructType) {
  private val chunks = new Chunks(range)
  private val decoder = if (range.events) new Events(schema, chunks) else new UserRecords(schema, chunks)
  private val batch = new ColumnarBatch(decoder.columns.toArray[ColumnVector])
  private var record = 0
  private var room = 0

  def next(): ColumnarBatch = {
    var rows = 0
    while (rows == 0) {
      if (record == chunks.until) {
        if (!chunks.load()) return null
        record = chunks.from
      }
      rows = fill()
    }
    batch.setNumRows(rows)
    batch
  }

  private def fill(): Int = {
    var rows = 0
    var added = decoder.rowsOf(record)
    reserve(math.max(added, FolderReader.BatchRows))
    while (rows + added <= room) {
      if (added > 0) decoder.fill(record, rows)
      rows += added
      record += 1
      if (record == chunks.until) return rows
      added = decoder.rowsOf(record)
    }
    rows
  }

  private def reserve(rows: Int): Unit = if (rows > room) {
    decoder.columns.foreach(_.reserve(rows))
    room = rows
  }

  /** Offset of the record after the batch. */
  def nextOffset: Long = chunks.offset(record)

  def close(): Unit = chunks.close()
}

/** Rows read by Python. */
private class PythonRows(schema: StructType, python: PartitionReader[InternalRow]) {
  private val types = schema.map(_.dataType).toArray
  private val columns = types.map(new Given(_))
  private val batch = new ColumnarBatch(columns.toArray[ColumnVector])
  columns.foreach(_.reserve(FolderReader.BatchRows))

  def next(): ColumnarBatch = {
    var rows = 0
    while (rows < FolderReader.BatchRows && python.next()) {
      val row = python.get().copy()
      for (place <- columns.indices) columns(place).values(rows) = row.get(place, types(place))
      rows += 1
    }
    batch.setNumRows(rows)
    if (rows > 0) batch else null
  }

  def close(): Unit = python.close()
}
