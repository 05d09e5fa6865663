"""`topics pipeline`: the jobs of the data pipeline, on Spark."""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from topics.cli.config import target
from topics.cli.failures import REFUSED, USAGE, Failure
from topics.cli.output import json_option, pairs

if TYPE_CHECKING:
    from spark_integration.jobs.progress import Place

Job = Callable[..., Any]


@click.group()
def pipeline() -> None:
    """Jobs on Spark. They can be stopped and started again at any time."""


def runs_job(function: Job) -> Callable[..., None]:
    """A command whose function gets `spark` and `place` and returns a summary."""

    @click.option("--url", metavar="URL", help="The server. [TOPICS_URL; default http://127.0.0.1:4000]")
    @click.option(
        "--key-file", metavar="FILE", help="File with the API key, - for stdin. [TOPICS_KEY_FILE, TOPICS_KEY]"
    )
    @click.option("--key", metavar="KEY", help="The API key; better in a file or TOPICS_KEY, where nobody sees it.")
    @click.option("--master", metavar="URL", help="Spark's master. [as configured, else all cores of this machine]")
    @click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    @json_option
    @functools.wraps(function)
    def command(
        url: str, key_file: str, key: str, master: str, conf: tuple[str, ...], as_json: bool, **kwargs: Any
    ) -> None:
        where = target(url, key, key_file)
        if find_spec("pyspark") is None:
            raise Failure(REFUSED, "Spark is not installed: pip install 'topics[spark]'", "not_installed")
        from spark_integration.jobs.progress import Place

        spark = _session(function.__name__, master, conf)
        try:
            summary = asdict(function(spark, Place(where.url, where.key), **kwargs))
        except Failure:
            raise
        except Exception as error:
            raise Failure(REFUSED, _reason(error), type(error).__name__) from error
        finally:
            spark.stop()
        if as_json:
            click.echo(json.dumps(summary))
        else:
            pairs([(name, _shown(value)) for name, value in summary.items()])
        if summary.get("problems"):
            sys.exit(REFUSED)

    return command


def _session(name: str, master: str | None, conf: tuple[str, ...]) -> Any:
    from spark_integration.java import NoJava
    from spark_integration.session import QUIET, spark_session

    if any("=" not in setting for setting in conf):
        raise Failure(USAGE, "--conf takes NAME=VALUE")
    settings = dict(setting.split("=", 1) for setting in conf)
    local = master is None or master.startswith("local")
    try:
        session = spark_session(f"topics {name}", master, (QUIET if local else {}) | settings)
    except NoJava as error:
        raise Failure(REFUSED, str(error), "no_java") from None
    session.sparkContext.setLogLevel("ERROR")
    return session


def _shown(value: Any) -> Any:
    return ", ".join(f"{name}: {count}" for name, count in value.items()) if isinstance(value, dict) else value


def _reason(error: Exception) -> str:
    """The line that says it: Spark wraps an error of a task into its whole stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("spark_integration.")]
    return (ours or lines or [type(error).__name__])[0]


def _selection(names: tuple[str, ...], pattern: str | None) -> Any:
    from spark_integration.options import Selection

    if bool(names) == bool(pattern):
        raise Failure(USAGE, "give names of topics or --pattern: one of them")
    return Selection(names, pattern)


@pipeline.command()
@click.argument("folder")
@click.argument("topics", nargs=-1)
@click.option("--pattern", metavar="REGEX", help="Every topic whose whole name matches, instead of names.")
@click.option("--delete", is_flag=True, help="Delete from the topics what is safely in the archive.")
@click.option(
    "--step", type=click.IntRange(1), default=1_000_000, help="Records that are archived in one go. [1000000]"
)
@click.option("--partitions", type=click.IntRange(1), default=1, help="Tasks that read at once, at least. [1]")
@runs_job
def archive(spark: Any, place: "Place", folder: str, topics: tuple[str, ...], pattern: str, **more: Any) -> Any:
    """Put what TOPICS have into Parquet files below FOLDER, every record once.

    \b
    Examples:
      topics pipeline archive /data/archive orders payments
      topics pipeline archive s3a://bucket/archive --pattern 'tenant42:.*' --delete
    """
    from spark_integration.jobs.archive import archive as run

    chosen = _selection(topics, pattern)
    return run(
        spark,
        place,
        chosen,
        folder,
        delete=more["delete"],
        step_records=more["step"],
        min_partitions=more["partitions"],
    )


@pipeline.command()
@click.argument("folder")
@click.argument("topic")
@click.argument("into")
@click.option("--first", type=click.IntRange(0), default=0, help="Begin at this archived seq. [0]")
@click.option("--last", type=click.IntRange(0), help="End with this archived seq. [all]")
@click.option("--name", default="replay", help="Another name is another replay of the same records. [replay]")
@runs_job
def replay(spark: Any, place: "Place", folder: str, topic: str, into: str, **more: Any) -> Any:
    """Append the records of TOPIC in the archive FOLDER to the topic INTO, in their order.

    \b
    Examples:
      topics pipeline replay /data/archive orders orders.again
      topics pipeline replay /data/archive orders orders.again --first 5000 --last 6000
    """
    from spark_integration.jobs.replay import replay as run

    return run(spark, place, folder, topic, into, **more)


@pipeline.command()
@click.argument("files")
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), required=True, help="Of the files.")
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Where the job remembers which files it has taken.")
@click.option("--topic", help="Where to append.")
@click.option("--topic-column", help="The column, or key of JSON, that names the topic of each row.")
@click.option("--tag-column", help="The column, or key of JSON, that becomes the tag.")
@runs_job
def ingest(spark: Any, place: "Place", files: str, kind: str, checkpoint: str, **more: Any) -> Any:
    """Append the rows of FILES (a folder or a glob) to topics; files that come later are for the next run.

    \b
    Examples:
      topics pipeline ingest /data/in --format csv --checkpoint /data/ingest-state --topic orders
      topics pipeline ingest '/data/in/*.jsonl' --format json --checkpoint /data/ingest-state --topic-column tenant
    """
    from spark_integration.jobs.ingest import ingest as run

    return run(spark, place, files, kind, checkpoint, **more)


@pipeline.command()
@click.argument("topics", nargs=-1)
@click.option("--pattern", metavar="REGEX", help="Every topic whose whole name matches, instead of names.")
@click.option("--into-topic", metavar="TOPIC", help="Append the windows to this topic.")
@click.option("--into-folder", metavar="FOLDER", help="Write the windows as Parquet below this folder.")
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Where the job remembers how far it is.")
@click.option("--mode", type=click.Choice(["batch", "once", "follow"]), default="once", help="See above. [once]")
@click.option("--window", default="1 minute", metavar="TIME", help="How long a window is. [1 minute]")
@click.option("--slide", metavar="TIME", help="Windows begin so far apart, and overlap. [as long as they are]")
@click.option(
    "--watermark", default="1 minute", metavar="TIME", help="How long a window waits for late records. [1 minute]"
)
@click.option("--value", metavar="PATH", help="Where a number is in the data, such as $.amount.")
@click.option(
    "--quantile", "quantiles", type=float, multiple=True, help="Of the values; may be repeated. [0.5 0.95 0.99]"
)
@click.option("--by-tag/--not-by-tag", default=True, help="Whether each tag has windows of its own.")
@click.option("--per-batch", type=click.IntRange(1), help="Records that a stream takes in one go, at most. [all]")
@runs_job
def aggregate(
    spark: Any, place: "Place", topics: tuple[str, ...], pattern: str, checkpoint: str, mode: str, **more: Any
) -> Any:
    """Count the records of TOPICS in windows of time, per topic and tag, with quantiles of a value.

    \b
    once    what is new since the run before; windows that are closed are given out, once
    follow  the same, and stay until interrupted
    batch   everything there is now, with every window

    \b
    Examples:
      topics pipeline aggregate orders --value '$.amount' --into-topic orders.minutes --checkpoint /data/minutes
      topics pipeline aggregate web --mode batch --window '1 hour' --into-folder /data/hours --checkpoint /data/c
    """
    from spark_integration.jobs.aggregate import Into, Plan
    from spark_integration.jobs.aggregate import aggregate as run
    from spark_integration.jobs.windows import Measure

    quantiles = more["quantiles"] or (0.5, 0.95, 0.99)
    measure = Measure(more["window"], more["slide"], more["by_tag"], more["value"], tuple(quantiles))
    into = Into(more["into_topic"], more["into_folder"])
    plan = Plan(_selection(topics, pattern), into, measure, mode, more["watermark"], more["per_batch"])
    return run(spark, place, plan, checkpoint)


@pipeline.command()
@click.argument("report")
@click.argument("topics", nargs=-1)
@click.option("--pattern", metavar="REGEX", help="Every topic whose whole name matches, instead of names.")
@click.option("--archive", "root", metavar="FOLDER", help="Compare with what is archived there.")
@runs_job
def audit(spark: Any, place: "Place", report: str, topics: tuple[str, ...], pattern: str, root: str) -> Any:
    """Check TOPICS, their archive and the copies routers made of them: gaps, duplicates, order, losses.

    What is found goes to the folder REPORT: index.html to look at, audit.json for programs. The exit status is 1 if
    there is a problem.

    \b
    Examples:
      topics pipeline audit /data/audit orders --archive /data/archive
      topics pipeline audit /data/audit --pattern 'tenant42:.*' --json
    """
    from spark_integration.jobs.audit import audit as run

    return run(spark, place, _selection(topics, pattern), report, root=root)


@pipeline.command("dead-letters")
@click.argument("report")
@click.argument("topics", nargs=-1)
@click.option("--pattern", metavar="REGEX", help="Every topic whose whole name matches, instead of names.")
@click.option("--redrive-to", metavar="QUEUE", help="Afterwards, move them to this queue.")
@click.option("--tag-prefix", help="Move only those whose tag begins like this.")
@click.option("--limit", type=click.IntRange(1), help="Move at most so many. [all that were found]")
@runs_job
def dead_letters(
    spark: Any, place: "Place", report: str, topics: tuple[str, ...], pattern: str, redrive_to: str, **more: Any
) -> Any:
    """Tell why and when the jobs in TOPICS were given up; the folder REPORT gets index.html and dead-letters.json.

    \b
    Examples:
      topics pipeline dead-letters /data/dead jobs.dead
      topics pipeline dead-letters /data/dead jobs.dead --redrive-to jobs --limit 100
    """
    from spark_integration.jobs.dead_letters import Redrive
    from spark_integration.jobs.dead_letters import dead_letters as run

    if redrive_to is None and any(value is not None for value in more.values()):
        raise Failure(USAGE, "--tag-prefix and --limit are for --redrive-to")
    redrive = None if redrive_to is None else Redrive(redrive_to, more["tag_prefix"], more["limit"])
    return run(spark, place, _selection(topics, pattern), report, redrive=redrive)
