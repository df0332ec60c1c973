package penstock.spark

import java.lang.Long.parseUnsignedLong

import net.razorvine.pickle.{IObjectConstructor, Unpickler}
import org.apache.spark.sql.types._

import scala.util.Try

/** A range of the log in a folder, as pickled by `Range` in penstock/pipeline/source/range_reader.py. */
case class FolderRange(start: Long, end: Long, folder: String, uid: Long, events: Boolean)

object FolderRange {
  Unpickler.registerConstructor("penstock.pipeline.source.range_reader", "Range", new IObjectConstructor {
    override def construct(arguments: Array[Object]): Object = arguments match {
      case Array(start: Number, end: Number, folder: String, uid: String, events: java.lang.Boolean) =>
        FolderRange(start.longValue, end.longValue, folder, parseUnsignedLong(uid), events)
      case _ => None
    }
  })

  /** Pickles a range without a folder, which Python reads. */
  def pickled(start: Long, end: Long): Array[Byte] =
    s"cpenstock.pipeline.source.range_reader\nRange\n(L${start}L\nL${end}L\ntR.".getBytes("ASCII")

  /** Unpickles a range; None if it has no folder or another form. */
  def of(pickled: Array[Byte]): Option[FolderRange] =
    Try(new Unpickler().loads(pickled)).toOption.collect { case range: FolderRange => range }
}

object Schemas {
  val events: Map[String, DataType] = Map(
    "offset" -> LongType, "number" -> IntegerType, "at" -> TimestampType, "kind" -> StringType,
    "queue" -> StringType, "queue_id" -> LongType, "id" -> LongType, "uuid" -> StringType,
    "pushed_at" -> TimestampType, "first_leased_at" -> TimestampType, "leased_at" -> TimestampType,
    "until" -> TimestampType, "attempts" -> IntegerType, "priority" -> IntegerType, "marks" -> IntegerType,
    "details" -> StringType, "content" -> StringType, "body" -> BinaryType)
  val records: Map[String, DataType] = Map("offset" -> LongType, "timestamp" -> TimestampType, "data" -> BinaryType)

  /** Returns true for known columns; Python rejects any others. */
  def known(schema: StructType): Boolean =
    Seq(events, records).exists(types => schema.forall(field => types.get(field.name).contains(field.dataType)))
}
