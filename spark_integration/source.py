"""`format("topics")`: what Spark asks for, in Spark's own names."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_integration.batch_reader import PushingReader, TopicsReader
from spark_integration.options import BadOption, data_type, read_options, write_options
from spark_integration.pages import schema as full_schema
from spark_integration.records import check_columns
from spark_integration.stream_reader import TopicsStreamReader
from spark_integration.writer import TopicsStreamWriter, TopicsWriter


class TopicsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        return full_schema(data_type(self.options))  # Spark does not say here whether it is for a stream

    def reader(self, schema: StructType) -> TopicsReader:
        options = read_options(self.options, stream=False)
        _check_schema(schema, options.data_type)
        return PushingReader(options, schema) if options.push_filters else TopicsReader(options, schema)

    def streamReader(self, schema: StructType) -> TopicsStreamReader:
        options = read_options(self.options, stream=True)
        _check_schema(schema, options.data_type)
        return TopicsStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicsWriter:
        _no_overwrite(overwrite)
        options = write_options(self.options)
        check_columns(schema, options.topic)
        return TopicsWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicsStreamWriter:
        _no_overwrite(overwrite)
        options = write_options(self.options)
        check_columns(schema, options.topic)
        return TopicsStreamWriter(options, schema)


def _check_schema(wanted: StructType, data_type: str) -> None:
    """A schema of one's own may leave columns out, which are then not fetched."""
    offered = {field.name: field.dataType for field in full_schema(data_type)}
    for field in wanted:
        if field.name not in offered:
            raise BadOption(f"there is no column {field.name!r}; there are {', '.join(offered)}")
        if field.dataType != offered[field.name]:
            offer = offered[field.name].simpleString()
            raise BadOption(f"the column {field.name!r} is {offer}, not {field.dataType.simpleString()}")


def _no_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise BadOption("a topic is not overwritten; write with mode append, and delete what should go with the API")
