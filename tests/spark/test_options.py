import pytest

from spark_integration.options import BadOption, read_options, write_options

URL = {"url": "http://127.0.0.1:4000"}


def test_defaults_of_a_batch_and_of_a_stream_differ_as_in_kafka():
    batch = read_options(URL | {"topic": "t"}, stream=False)
    stream = read_options(URL | {"topic": "t"}, stream=True)
    assert (batch.starting, batch.ending, stream.starting) == ("earliest", "latest", "latest")
    assert batch.fail_on_loss
    assert stream.fail_on_loss


def test_names_are_taken_in_any_case_and_lists_are_split():
    options = read_options(URL | {"TOPICS": "a, b,a", "FAILONDATALOSS": "False", "nodefilter": "n1,n2"}, stream=False)
    assert options.selection.names == ("a", "b")
    assert not options.fail_on_loss
    assert options.nodes == ("n1", "n2")


def test_a_slash_at_the_end_of_the_url_does_no_harm():
    assert read_options({"url": "http://h:1/", "path": "t"}, stream=False).server.url == "http://h:1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "t", "url": ""}, "url is missing"),
        ({"topic": "t", "url": "localhost:4000"}, "http://host:port"),
        ({}, "exactly one of topic, topics .* not none"),
        ({"topic": "a", "topics": "b"}, "not topic and topics"),
        ({"topicPattern": "("}, "not a regular expression"),
        ({"topic": "t", "failOnDataLos": "false"}, "unknown option 'failOnDataLos'"),
        ({"topic": "t", "failOnDataLoss": "no"}, "true or false"),
        ({"topic": "t", "startingOffsets": "first"}, "'earliest', 'latest' or a JSON object"),
        ({"topic": "t", "startingOffsets": '{"t": "1"}'}, "a seq"),
        ({"topic": "t", "startingOffsets": '{"t": -1}'}, "a seq"),
        ({"topic": "t", "startingOffsets": "latest"}, "nothing would be read"),
        ({"topic": "t", "endingOffsets": "earliest"}, "nothing would be read"),
        ({"topic": "t", "startingTimestamp": "2026-01-01"}, "milliseconds since 1970"),
        ({"topic": "t", "fetchSize": "0"}, "a whole number from 1"),
        ({"topic": "t", "dataType": "json"}, "string or variant"),
        ({"topic": "t", "retrySeconds": "long"}, "must be a number"),
        ({"topic": "t", "retrySeconds": "nan"}, "must be a number"),
        ({"topic": "t", "retrySeconds": "-1"}, "must be a number"),
        ({"topics": " , "}, "names such as a,b,c"),
    ],
)
def test_what_is_wrong_with_a_read_is_said(given, said):
    with pytest.raises(BadOption, match=said):
        read_options(URL | given, stream=False)


def test_a_stream_has_no_end():
    with pytest.raises(BadOption, match="a stream has no end"):
        read_options(URL | {"topic": "t", "endingOffsets": "latest"}, stream=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "a,b"}, "topics is for reading"),
        ({"txnAppId": "a"}, "belong together"),
        ({"config": "[1]"}, "a JSON object"),
        ({"create": "maybe"}, "true or false"),
    ],
)
def test_what_is_wrong_with_a_write_is_said(given, said):
    with pytest.raises(BadOption, match=said):
        write_options(URL | given)
