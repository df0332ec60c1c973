package penstock.spark

import java.io.{Closeable, File}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, Paths}
import java.util.zip.CRC32

import scala.util.control.NoStackTrace

/** Anything unexpected; Python then reads the rest and handles or reports it. */
class Odd(what: String) extends RuntimeException(what) with NoStackTrace

/** Reads and checks the records of a range, a buffer at a time. penstock/log/record.py defines their form. */
final class Chunks(range: FolderRange) extends Closeable {
  import Chunks._

  var bytes = new Array[Byte](ChunkBytes)
  var buffer: ByteBuffer = wrapped
  /** The buffer holds the segment's records `from` to `until`. */
  var from, until = 0

  private val folder = Paths.get(range.folder)
  private val firsts = firstsIn(folder)
  private val sum = new RecordSum
  private var next = range.start
  private var base, stop = 0
  private var segment: Segment = _

  def offset(record: Int): Long = segment.first + record
  def start(record: Int): Int = segment.start(record) - base
  def end(record: Int): Int = segment.end(record) - base
  def kind(record: Int): Int = bytes(start(record) + 16) & 0xff

  /** Reads the next records; false if there are none. */
  def load(): Boolean = {
    if (next >= range.end) return false
    if (segment == null || until == stop) open()
    var wanted = false
    while (!wanted) {
      fill()
      wanted = offset(until) > next
    }
    from = math.max(from, (next - segment.first).toInt)
    next = offset(until)
    true
  }

  private def open(): Unit = {
    close()
    val place = firsts.lastIndexWhere(_ <= next)
    if (place < 0) throw new Odd(s"no segment holds offset $next")
    segment = new Segment(folder, range.uid, firsts(place))
    if (!segment.sealedUp && place < firsts.length - 1) throw new Odd(s"segment ${segment.first} was never sealed")
    stop = math.min(segment.count, range.end - segment.first).toInt
    if (segment.first + stop <= next) throw new Odd(s"segment ${segment.first} does not hold offset $next")
    // Without a seal the index is not trusted, so check every entry against its record.
    until = if (segment.sealedUp) (next - segment.first).toInt else 0
  }

  private def fill(): Unit = {
    from = until
    base = segment.start(from)
    until = from + 1
    while (until < stop && segment.end(until) - base <= ChunkBytes) until += 1
    val size = segment.end(until - 1) - base
    if (size < HeaderBytes) throw new Odd(s"the index of segment ${segment.first} is damaged")
    if (size > bytes.length) {
      bytes = new Array[Byte](size)
      buffer = wrapped
    }
    segment.read(bytes, base, size)
    var record = from
    while (record < until) {
      if (!intact(start(record), end(record), size)) throw new Odd(s"the record at offset ${offset(record)} is damaged")
      record += 1
    }
  }

  private def intact(start: Int, end: Int, size: Int): Boolean =
    end - start >= HeaderBytes && end <= size && buffer.getInt(start) == end - start - HeaderBytes &&
      buffer.getInt(start + 4) == sum.of(bytes, start, end)

  private def wrapped: ByteBuffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)

  override def close(): Unit = if (segment != null) segment.close()
}

object Chunks {
  val HeaderBytes = 24
  /** Small enough to stay in a core's cache while columns are filled. */
  val ChunkBytes: Int = 1 << 20
  private val LogName = """(\d{20})\.log""".r

  def firstsIn(folder: Path): Array[Long] = {
    val names = folder.toFile.list
    if (names == null) throw new Odd(s"$folder is not a folder")
    names.collect { case LogName(first) => first.toLong }.sorted
  }
}

/** One segment: its file, and the record ends from its index. penstock/log/index.py defines the index. */
final class Segment(folder: Path, uid: Long, val first: Long) extends Closeable {
  import Segment._

  private val index = ByteBuffer.wrap(Files.readAllBytes(file(".idx"))).order(ByteOrder.LITTLE_ENDIAN)
  private val marked: Long = {
    val header = index.array
    if (header.length < EndsAt || index.getInt(SumAt) != sumOf(header, 0, SumAt) || index.getLong(0) != Magic ||
      index.getLong(8) != uid || index.getLong(16) != first) throw new Odd(s"segment $first has the index of another segment")
    index.getLong(24)
  }
  private val ends = new Array[Int]((index.capacity - EndsAt) / 4)
  index.position(EndsAt)
  index.slice.order(ByteOrder.LITTLE_ENDIAN).asIntBuffer.get(ends)

  val sealedUp: Boolean = marked >= 0
  val count: Long = if (sealedUp) marked else ends.length
  if (count > ends.length || (sealedUp && index.getInt(40) != sumOf(index.array, EndsAt, 4 * count.toInt)))
    throw new Odd(s"the index of segment $first is damaged")

  private val channel = FileChannel.open(file(".log"))
  private val begin: Int = try begins() catch { case error: Throwable => channel.close(); throw error }

  def start(record: Int): Int = if (record == 0) begin else ends(record - 1)
  def end(record: Int): Int = ends(record)

  def read(into: Array[Byte], position: Long, size: Int): Unit = {
    val target = ByteBuffer.wrap(into, 0, size)
    while (target.hasRemaining)
      if (channel.read(target, position + target.position()) < 0) throw new Odd(s"segment $first is truncated")
  }

  /** Start of the records, after the header (penstock/log/segment_header.py). Segments of 0.1.0 have no header. */
  private def begins(): Int = {
    val head = ByteBuffer.allocate(HeadBytes).order(ByteOrder.LITTLE_ENDIAN)
    while (head.hasRemaining && channel.read(head, head.position()) >= 0) {}
    val copies = Seq(0, HeadBytes / 2).filter(at => head.position() >= at + HeadBytes / 2 &&
      head.getLong(at) == HeadMagic && head.getInt(at + 24) == sumOf(head.array, at, 24))
    if (copies.isEmpty) 0
    else if (copies.exists(at => head.getLong(at + 8) == uid && head.getLong(at + 16) == first)) HeadBytes
    else throw new Odd(s"the file of segment $first belongs to another log")
  }

  private def file(suffix: String): Path = folder.resolve(f"$first%020d$suffix")

  override def close(): Unit = channel.close()
}

object Segment {
  private val EndsAt = 64
  private val SumAt = 56
  private val HeadBytes = 64
  private val Magic = number("PENSTKI1")
  private val HeadMagic = number("PENSTKL2")

  private def number(text: String): Long = ByteBuffer.wrap(text.getBytes("ASCII")).order(ByteOrder.LITTLE_ENDIAN).getLong

  private def sumOf(bytes: Array[Byte], at: Int, size: Int): Int = {
    val sum = new CRC32
    sum.update(bytes, at, size)
    sum.getValue.toInt
  }
}

/** Seeds the checksum with a record's length: Java's CRC takes no seed, but four bytes that produce it. */
final class RecordSum {
  private val sum = new CRC32
  private val lead = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN)
  private var leadsTo = -1

  def of(bytes: Array[Byte], start: Int, end: Int): Int = {
    val length = end - start - Chunks.HeaderBytes
    if (length != leadsTo) {
      var state = ~length
      var bit = 0
      while (bit < 32) {
        state = if (state < 0) (state ^ 0xedb88320) << 1 | 1 else state << 1
        bit += 1
      }
      lead.putInt(0, ~state)
      leadsTo = length
    }
    sum.reset()
    sum.update(lead.array)
    sum.update(bytes, start + 8, end - start - 8)
    sum.getValue.toInt
  }
}
