package penstock.spark

import org.apache.spark.sql.types._

/** The records of a stream, one row each. */
final class UserRecords(schema: StructType, chunk: Chunks) extends Decoder {
  override val columns: Array[Column] = schema.map(_.name match {
    case "offset" => new Longs(LongType, zeroIsNull = false)
    case "timestamp" => new Longs(TimestampType, zeroIsNull = false)
    case "data" => new Slices(chunk)
  }).toArray
  private val names = schema.names

  override def rowsOf(record: Int): Int = if (chunk.kind(record) == Events.Lost) 0 else 1

  override def fill(record: Int, row: Int): Unit = {
    val start = chunk.start(record)
    var place = 0
    while (place < columns.length) {
      columns(place) match {
        case data: Slices =>
          data.starts(row) = start + Chunks.HeaderBytes
          data.ends(row) = chunk.end(record)
        case numbers: Longs =>
          numbers.values(row) =
            if (names(place) == "offset") chunk.offset(record) else chunk.buffer.getLong(start + 8) * 1000
        case _ =>
      }
      place += 1
    }
  }
}
