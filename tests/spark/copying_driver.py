"""A driver of its own for tests: copies a topic to another one as a stream, a moment for every few records."""

import sys
import time

from spark_integration.session import spark_session
from tests.spark.frames import CONF, LONG_MEMORY

if __name__ == "__main__":
    url, topic, target, checkpoint, pause_s = sys.argv[1:]

    def slowly(batches):
        for batch in batches:
            for low in range(0, len(batch), 100):
                time.sleep(float(pause_s))
                yield batch.slice(low, 100)

    spark = spark_session("copy", "local[1]", CONF)
    options = {"url": url, "topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000"}
    frame = spark.readStream.format("topics").options(**options).load().select("data")
    frame = frame.mapInArrow(slowly, frame.schema)
    sink = frame.writeStream.format("topics").options(url=url, topic=target, batchSize="100", config=LONG_MEMORY)
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()
