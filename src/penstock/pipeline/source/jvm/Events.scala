package penstock.spark

import java.util.Arrays

import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** Decodes the journal's events. penstock/journal/events.py defines records, penstock/journal/arrow.py the rows. */
final class Events(schema: StructType, chunk: Chunks) extends Decoder {
  import Events._

  private val fillers = schema.map(field => fillerOf(field.name)).toArray
  override val columns: Array[Column] = fillers.map(_.column)

  // State of the current record; positions are within the chunk.
  private var at, kind, count, varies, nameAt, detailsAt, bodiesAt, end = 0
  private var offset = 0L

  override def rowsOf(record: Int): Int = {
    if (chunk.kind(record) == Lost) return 0
    val rows = chunk.buffer.getInt(chunk.start(record) + Chunks.HeaderBytes)
    // An event may take no bytes of its own, so a damaged count is only caught by a limit.
    if (rows < 0 || rows > RowsMax) throw new Odd(s"a record has $rows events")
    rows
  }

  override def fill(record: Int, row: Int): Unit = {
    val buffer = chunk.buffer
    at = chunk.start(record)
    end = chunk.end(record)
    offset = chunk.offset(record)
    kind = chunk.kind(record)
    count = buffer.getInt(at + 24)
    varies = buffer.getShort(at + 38) & 0xffff
    nameAt = bodyEndsAt + (if ((varies & Bodies) != 0) endsBytes else 0)
    detailsAt = nameAt + (buffer.getShort(at + 40) & 0xffff)
    bodiesAt = detailsAt + buffer.getInt(at + 44)
    if (kind == 0 || kind >= Kinds.length || bodiesAt < detailsAt || bodiesAt > end)
      throw new Odd(s"the record at offset $offset has an unknown form")
    var place = 0
    while (place < fillers.length) {
      fillers(place).fill(row)
      place += 1
    }
  }

  /** Position of the values of a varying column. */
  private def arrayAt(column: Int): Int = at + ArraysAt + 8 * count * Integer.bitCount(varies & (1 << column) - 1)
  private def detailEndsAt: Int = arrayAt(ColumnCount)
  private def bodyEndsAt: Int = detailEndsAt + (if ((varies & Details) != 0) endsBytes else 0)
  private def endsBytes: Int = 4 * (count + (count & 1))
  private def first(column: Int): Long = chunk.buffer.getLong(at + ColumnsAt + 8 * column)
  private def isVarying(column: Int): Boolean = (varies >> column & 1) != 0

  private abstract class Filler {
    def column: Column
    def fill(row: Int): Unit
  }

  private def fillerOf(name: String): Filler = name match {
    case "offset" => same(LongType, offset)
    case "number" => new Numbers
    case "at" => new At
    case "kind" => new SharedText(Kinds(kind))
    case "queue" => new Queue
    case "queue_id" => same(LongType, chunk.buffer.getInt(at + 28))
    case "id" => new Values(0, LongType, 1)
    case "uuid" => new Uuids
    case "marks" => new SharedInt(chunk.buffer.getShort(at + 36) & 0xffff)
    case "details" => new DetailTexts
    case "content" => new Content
    case "body" => new BodySlices
    case "attempts" | "priority" => new IntValues(Names.indexOf(name))
    case _ => new Values(Names.indexOf(name), TimestampType, 1000)
  }

  private def same(kind: DataType, value: => Long): Filler = new Filler {
    override val column = new Longs(kind, zeroIsNull = false)
    override def fill(row: Int): Unit = Arrays.fill(column.values, row, row + count, value)
  }

  private class SharedInt(value: => Int) extends Filler {
    override val column = new Ints
    override def fill(row: Int): Unit = Arrays.fill(column.values, row, row + count, value)
  }

  private class SharedText(value: => UTF8String) extends Filler {
    override val column = new Texts
    override def fill(row: Int): Unit =
      Arrays.fill(column.values.asInstanceOf[Array[Object]], row, row + count, value)
  }

  private class Numbers extends Filler {
    override val column = new Ints
    override def fill(row: Int): Unit = {
      var number = 0
      while (number < count) {
        column.values(row + number) = number
        number += 1
      }
    }
  }

  private class Values(which: Int, kind: DataType, factor: Long) extends Filler {
    override val column = new Longs(kind, zeroIsNull = true)
    override def fill(row: Int): Unit = copy(which, row)

    protected def copy(which: Int, row: Int): Unit = {
      val values = column.values
      val buffer = chunk.buffer
      val value = first(which)
      var number = 0
      if (isVarying(which)) {
        val from = arrayAt(which)
        while (number < count) {
          values(row + number) = buffer.getLong(from + 8 * number) * factor
          number += 1
        }
      } else if (which == 0) {
        while (number < count) {
          values(row + number) = value + number
          number += 1
        }
      } else Arrays.fill(values, row, row + count, value * factor)
    }
  }

  /** Pushes and leases may be recorded later than they happen. */
  private class At extends Values(1, TimestampType, 1000) {
    override def fill(row: Int): Unit =
      if (kind == Pushed) copy(1, row)
      else if (kind == Leased) copy(3, row)
      else Arrays.fill(column.values, row, row + count, chunk.buffer.getLong(at + 8) * 1000)
  }

  private class IntValues(which: Int) extends Filler {
    override val column = new Ints
    override def fill(row: Int): Unit =
      if (!isVarying(which)) Arrays.fill(column.values, row, row + count, small(first(which)))
      else for (number <- 0 until count) column.values(row + number) = small(eachOf(which, number))
  }

  private def eachOf(column: Int, number: Int): Long =
    if (isVarying(column)) chunk.buffer.getLong(arrayAt(column) + 8 * number)
    else if (column == 0) first(0) + number
    else first(column)

  private def small(value: Long): Int =
    if (value.toInt == value) value.toInt else throw new Odd(s"$value at offset $offset is too large")

  private class Queue extends Filler {
    override val column = new Texts
    private var name = UTF8String.EMPTY_UTF8
    override def fill(row: Int): Unit = {
      val size = detailsAt - nameAt
      if (!Arrays.equals(name.getBytes, 0, name.numBytes, chunk.bytes, nameAt, detailsAt))
        name = valid(UTF8String.fromBytes(Arrays.copyOfRange(chunk.bytes, nameAt, nameAt + size)))
      Arrays.fill(column.values.asInstanceOf[Array[Object]], row, row + count, name)
    }
  }

  private def valid(text: UTF8String): UTF8String =
    if (text.isValid) text else throw new Odd(s"a text at offset $offset is not UTF-8")

  private class Content extends Filler {
    override val column = new Texts
    override def fill(row: Int): Unit =
      for (number <- 0 until count) column.values(row + number) = if (kind == Pushed) content(number) else null
    private def content(number: Int): UTF8String = {
      val value = eachOf(7, number)
      if (value >= 0 && value < Contents.length) Contents(value.toInt)
      else throw new Odd(s"unknown content $value at offset $offset")
    }
  }

  private class Uuids extends Filler {
    override val column = new Texts
    override def fill(row: Int): Unit = {
      val storeId = chunk.buffer.getInt(at + 32) & 0xffffffffL
      for (number <- 0 until count) {
        val id = eachOf(0, number)
        column.values(row + number) = if (id == 0) null else Uuid.text(id, eachOf(1, number), storeId)
      }
    }
  }

  /** Variable-length parts of each event, one after the other. */
  private def eachPart(endsAt: Int, from: Int)(use: (Int, Int, Int) => Unit): Unit = {
    val buffer = chunk.buffer
    var start = from
    var number = 0
    while (number < count) {
      val stop = from + buffer.getInt(endsAt + 4 * number)
      if (stop < start || stop > end) throw new Odd(s"the parts of the record at offset $offset do not fit")
      use(number, start, stop)
      start = stop
      number += 1
    }
  }

  private class DetailTexts extends Filler {
    override val column = new Texts
    override def fill(row: Int): Unit =
      if ((varies & Details) == 0)
        Arrays.fill(column.values.asInstanceOf[Array[Object]], row, row + count, text(detailsAt, bodiesAt))
      else eachPart(detailEndsAt, detailsAt)((number, start, stop) => column.values(row + number) = text(start, stop))
    private def text(start: Int, stop: Int): UTF8String =
      if (start == stop) null else valid(UTF8String.fromBytes(chunk.bytes, start, stop - start))
  }

  private class BodySlices extends Filler {
    override val column = new Slices(chunk)
    override def fill(row: Int): Unit =
      if ((varies & Bodies) == 0) Arrays.fill(column.starts, row, row + count, -1)
      else eachPart(bodyEndsAt, bodiesAt) { (number, start, stop) =>
        column.starts(row + number) = start
        column.ends(row + number) = stop
      }
  }
}

object Events {
  val Lost = 255
  private val RowsMax = 1 << 20
  private val Pushed = 2
  private val Leased = 3
  private val ColumnsAt = 48
  private val ArraysAt = 112
  private val Names =
    Array("id", "pushed_at", "first_leased_at", "leased_at", "until", "attempts", "priority", "content")
  private val ColumnCount = Names.length
  private val Details = 1 << ColumnCount
  private val Bodies = 2 << ColumnCount
  private val Kinds = (null +: Array("queue", "pushed", "leased", "extended", "acked", "nacked", "lapsed", "dead",
    "redriven", "expired", "removed", "released", "forgotten", "worker")).map(UTF8String.fromString)
  private val Contents = Array("bytes", "text", "json").map(UTF8String.fromString)
}

/** Same as `message_uuid` in penstock/core/ids.py. */
object Uuid {
  private val Digits = "0123456789abcdef".getBytes("ASCII")

  def text(id: Long, createdMs: Long, storeId: Long): UTF8String = {
    val high = createdMs << 16 | 0x7000 | id >> 32 & 0xfff
    val low = (id & 0xffffffffL) << 30 | storeId | 1L << 63
    val text = new Array[Byte](36)
    var digit, place = 0
    while (digit < 32) {
      if (digit == 8 || digit == 12 || digit == 16 || digit == 20) {
        text(place) = '-'
        place += 1
      }
      val word = if (digit < 16) high else low
      text(place) = Digits((word >>> 60 - 4 * (digit & 15) & 15).toInt)
      digit += 1
      place += 1
    }
    UTF8String.fromBytes(text)
  }
}
