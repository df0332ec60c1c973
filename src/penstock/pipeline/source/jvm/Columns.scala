package penstock.spark

import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarArray, ColumnarMap}
import org.apache.spark.unsafe.types.UTF8String

/** A column that is refilled for each batch. Spark only calls the methods of its type. */
abstract class Column(kind: DataType) extends ColumnVector(kind) {
  /** Makes room for at least this many rows; existing values may be lost. */
  def reserve(rows: Int): Unit

  override def close(): Unit = ()
  override def hasNull: Boolean = true
  override def numNulls: Int = no
  override def getBoolean(row: Int): Boolean = no
  override def getByte(row: Int): Byte = no
  override def getShort(row: Int): Short = no
  override def getInt(row: Int): Int = no
  override def getLong(row: Int): Long = no
  override def getFloat(row: Int): Float = no
  override def getDouble(row: Int): Double = no
  override def getArray(row: Int): ColumnarArray = no
  override def getMap(row: Int): ColumnarMap = no
  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = no
  override def getUTF8String(row: Int): UTF8String = no
  override def getBinary(row: Int): Array[Byte] = no
  override def getChild(ordinal: Int): ColumnVector = no

  private def no: Nothing = throw new UnsupportedOperationException(s"a column of type $kind")
}

/** Numbers and times; in some columns, zero means null. */
final class Longs(kind: DataType, zeroIsNull: Boolean) extends Column(kind) {
  var values: Array[Long] = Array.empty

  override def reserve(rows: Int): Unit = if (values.length < rows) values = new Array(rows)
  override def isNullAt(row: Int): Boolean = zeroIsNull && values(row) == 0
  override def getLong(row: Int): Long = values(row)
}

final class Ints extends Column(IntegerType) {
  var values: Array[Int] = Array.empty

  override def reserve(rows: Int): Unit = if (values.length < rows) values = new Array(rows)
  override def isNullAt(row: Int): Boolean = false
  override def getInt(row: Int): Int = values(row)
}

/** Texts with few distinct values. */
final class Texts extends Column(StringType) {
  var values: Array[UTF8String] = Array.empty

  override def reserve(rows: Int): Unit = if (values.length < rows) values = new Array(rows)
  override def isNullAt(row: Int): Boolean = values(row) == null
  override def getUTF8String(row: Int): UTF8String = values(row)
}

/** Bytes that stay in the chunk until they are read. */
final class Slices(chunk: Chunks) extends Column(BinaryType) {
  var starts, ends: Array[Int] = Array.empty

  override def reserve(rows: Int): Unit = if (starts.length < rows) {
    starts = new Array(rows)
    ends = new Array(rows)
  }
  override def isNullAt(row: Int): Boolean = starts(row) < 0
  override def getBinary(row: Int): Array[Byte] = java.util.Arrays.copyOfRange(chunk.bytes, starts(row), ends(row))
}

/** Values from Python, row by row. */
final class Given(kind: DataType) extends Column(kind) {
  var values: Array[Any] = Array.empty

  override def reserve(rows: Int): Unit = if (values.length < rows) values = new Array(rows)
  override def isNullAt(row: Int): Boolean = values(row) == null
  override def getInt(row: Int): Int = values(row).asInstanceOf[Int]
  override def getLong(row: Int): Long = values(row).asInstanceOf[Long]
  override def getUTF8String(row: Int): UTF8String = values(row).asInstanceOf[UTF8String]
  override def getBinary(row: Int): Array[Byte] = values(row).asInstanceOf[Array[Byte]]
}
