package penstock.spark

import java.lang.Long.parseUnsignedLong

import net.razorvine.pickle.{IObjectConstructor, Unpickler}
import org.apache.spark.sql.types._

import scala.util.Try

/** What `Range` of penstock/pipeline/source/data_source.py says: some records of the log in a folder. */
case class FolderRange(start: Long, end: Long, folder: String, uid: Long, events: Boolean)

object FolderRange {
  Unpickler.registerConstructor("penstock.pipeline.source.data_source", "Range", new IObjectConstructor {
    override def construct(told: Array[Object]): Object = told match {
      case Array(start: Number, end: Number, folder: String, uid: String, events: java.lang.Boolean) =>
        FolderRange(start.longValue, end.longValue, folder, parseUnsignedLong(uid), events)
      case _ => None
    }
  })

  /** As Python pickles one that lies nowhere in particular: it is for Python to read. */
  def pickled(start: Long, end: Long): Array[Byte] =
    s"cpenstock.pipeline.source.data_source\nRange\n(L${start}L\nL${end}L\ntR.".getBytes("ASCII")

  /** None for what is not in a folder, or not of this form. */
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

  /** Any other is for Python to refuse. */
  def known(schema: StructType): Boolean =
    Seq(events, records).exists(types => schema.forall(field => types.get(field.name).contains(field.dataType)))
}
