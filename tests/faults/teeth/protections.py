"""What keeps each row of the matrix, and the test that has to fail if it is taken out.

The table that `make teeth` goes through (`tests/faults/teeth/bite.py`). Each entry is one protection: the function that
holds it and what is cut out there (`tests/faults/teeth/cuts.py`), what is missing then, and the quickest test of its
row that guards the consequence.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.faults.teeth.cuts import (
    ROOT,
    Cut,
    argument,
    becomes,
    calls,
    decides,
    drop,
    file_of,
    handles,
    keyword,
    without,
)

_USUAL_S = 300.0


@dataclass(frozen=True, slots=True)
class Tooth:
    """One protection that can be taken out."""

    row: int
    """Of the matrix of faults."""
    missing: str
    """What is missing without it, in one sentence."""
    function: str
    """The function that holds it: `Class.method`, or `module:function` if several modules have one of that name."""
    cut: Cut | tuple[Cut, ...]
    test: str
    """The test, or file of tests, that fails without it and bears the marker of the row, as `test` or `module:test`."""
    within_s: float = _USUAL_S
    """The most time that the test may take; it ends a test that would hang without the protection."""

    @property
    def file(self) -> Path:
        """The file of the function, below the project."""
        return file_of(self.function)

    @property
    def test_id(self) -> str:
        """The test as pytest names it."""
        if self.test.endswith(".py"):
            (file,) = (ROOT / "tests").rglob(self.test)
            return str(file.relative_to(ROOT))
        module, _, test = self.test.rpartition(":")
        (file,) = [path for path in _files_of_tests()[test.partition("[")[0]] if module in ("", path.stem)]
        return f"{file}::{test}"

    def without(self, source: str) -> str:
        """Return the file's source without the protection."""
        for cut in self.cut if isinstance(self.cut, tuple) else (self.cut,):
            source = without(source, self.function, cut)
        return source


@cache
def _files_of_tests() -> Mapping[str, list[Path]]:
    """Return the files that have a test of each name."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE):
            found[name].append(path.relative_to(ROOT))
    return found


# fmt: off
TEETH = (
    Tooth(38, "That each record is one object is not looked at.", "JsonDecoder._parse",
          decides("num_rows", "(table := table.slice(0, len(records))).num_rows == len(records)"),
          "test_what_is_learnt_or_set_aside_is_what_was_produced_by_kind_and_reason"),
    Tooth(36, "What is held of a key's last records moves by whole chunks, and not by what is settled.",
          "FollowedStates._follow",
          decides("one.log and one.position < one.settled", "one.log and one.position > one.settled"),
          "test_any_cut_and_any_restart_give_the_rows_of_plain_lists"),
    Tooth(36, "Sequences that are made ahead of what is learnt are in its checkpoints.", "FollowedStates.open",
          calls("copy", "one.state"), "test_any_cut_and_any_restart_give_the_rows_of_plain_lists"),
    Tooth(36, "The records of the present cell of offsets count for nothing after a restart.", "ClassSampler.fill",
          becomes("seen", "self.seen = np.zeros_like(self.seen)"),
          "test_any_cut_and_any_restart_keep_the_rows_of_a_plain_loop"),
    Tooth(36, "What shaping remembers is in no checkpoint.", "ShaperPart.snapshot",
          becomes("PartState", "return PartState()"), "test_shaped_learning_is_bit_identical_through_kills", 900),
    Tooth(36, "After a restart the rows of the past are a sample of less than there was.", "Reservoir.keep",
          argument("assign", 0, "tf.stack([tf.minimum(held + count, self._places), held + count])"),
          "test_it_holds_what_algorithm_r_would_however_batches_are_cut_into_calls"),
    Tooth(36, "Rows of the past are drawn otherwise after a restart.", "Reservoir.take",
          argument("_counts.assign", 0, "np.stack([counts[0], counts[0]])"),
          "test_reservoir:test_a_restored_checkpoint_continues_with_the_same_bits"),
    Tooth(42, "After a restart features are scaled by figures of the records since.", "RunningScale.restore",
          argument("assign", 1, "self._statistics()"),
          "test_running_scale:test_a_restored_checkpoint_continues_with_the_same_bits"),
    Tooth(42, "After a restart passes draw from other rows than were learnt last.", "RecentRows.restore",
          argument("_count.assign", 0, "0"),
          "test_recent_rows:test_a_restored_checkpoint_continues_with_the_same_bits"),
    Tooth(42, "Filtered records pass for offsets at which there is none.", "Remainder.cut",
          becomes("searchsorted", "filtered = 0"),
          "test_every_filtered_offset_is_counted_once_and_a_command_s_skip_comes_first"),
    Tooth(43, "A label that came when its record was due is used.", "LabelIndex._find",
          becomes("on_time", "on_time = np.ones(len(labels), np.bool_)"), "test_it_finds_what_a_plain_search_finds"),
    Tooth(43, "After a restart nobody knows which labels were used.", "LabelIndex._flags_of",
          calls("get", "None"), "test_it_finds_what_a_plain_search_finds"),
    Tooth(43, "Labels are read again from where they had been read, and not from the first that waits.",
          "LabelShaper.saved", calls("bases.get", "None"),
          "test_labels_that_come_later_are_joined_once_through_kills", 900),
    Tooth(43, "After a restart nobody knows up to when quiet partitions of labels counted as read.", "Jumps.__init__",
          drop("_read"), "test_labels_that_come_later_are_joined_once_through_kills", 900),
    Tooth(43, "In a group, what has become of a label at another worker is not counted.", "GroupJoin.meet",
          argument("let_go", 1, "()"), "test_a_label_that_one_worker_uses_is_counted_once"),
    Tooth(43, "In a group, nobody hears which partitions of labels the chief has counted as read.", "GroupJoin.meet",
          drop("hear"), "test_a_label_is_late_at_all_workers_where_the_chief_has_not_waited_for_it"),
    Tooth(43, "In a group, another worker reads labels that the chief has not read.", "LabelReader._received",
          decides("cut", "False"), "test_no_worker_reads_further_than_the_chief_has_said"),
    Tooth(43, "After a restart records go by clocks while labels that were counted are not there again.",
          "LabelReader.begin", becomes("begin.counted.items", "self._again = set()"),
          "test_after_a_restart_labels_behind_a_jump_are_counted_once"),
    Tooth(1, "What the optimizer knew is not brought back with the weights.", "VariablesPart.restore",
          decides("arrays", "key in arrays and self.name != 'optimizer'"),
          "test_a_resumed_run_with_dropout_is_bit_identical_to_an_undisturbed_one", 900),
    Tooth(1, "Reading does not begin exactly where the checkpoint stands.", "KafkaClient.assign",
          argument("seek", 1, "position + 1"), "test_a_resumed_run_with_dropout_is_bit_identical_to_an_undisturbed_one",
          900),
    Tooth(1, "A restart goes on from the oldest checkpoint instead of the newest.", "newest_verified",
          calls("reversed", "numbers"), "test_kills.py", 1200),
    Tooth(2, "A checkpoint is written under its final name, so that a part of one has a number.", "publish_draft",
          becomes("saving", "temporary = published = writer.folder.checkpoint(draft.number)"),
          "test_a_kill_in_any_window_of_a_save_loads_the_previous_or_the_new_one[save.before_manifest]"),
    Tooth(2, "What a writer that died has left half written is never removed.", "CheckpointStore.__init__",
          drop("remove_leftovers"),
          "test_a_kill_in_any_window_of_a_save_loads_the_previous_or_the_new_one[save.after_data]"),
    Tooth(2, "Positions are committed before their checkpoint is durable.", "Service._restore",
          keyword("before_manifest", "lambda request: source.commit(request.positions).result(_COMMIT_S)"),
          "test_a_kill_around_a_commit_leaves_the_offsets_of_a_durable_checkpoint"),
    Tooth(3, "A beginning from which nothing was learnt yet is no beginning: the start is resolved anew.",
          "Service._restore",
          argument("begin_or_restore", "start_over", "(known := store.newest()) is None or not known.step"),
          "test_start_latest_skips_nothing_written_later_though_killed_before_any_save", 150),
    Tooth(3, "The locks of those who wrote before stay for ever.", "FolderLease._begin", drop("unlink"),
          "test_a_start_killed_again_and_again_converges_and_leaves_no_more_files_than_one", 900),
    Tooth(4, "An order is carried out, and not published.", "publish_rewind",
          calls("publish_linked", "store.manifest(command.to)"),
          "test_a_kill_around_a_rewind_restarts_on_the_timeline_that_was_last_published"),
    Tooth(4, "A restart goes on from where most was learnt, instead of from what was last ordered.", "newest_verified",
          becomes("looks", "looks = iter(sorted(map(look, numbers), key=lambda at: -getattr(at.manifest, 'step', 0)))"),
          "test_a_kill_around_a_rewind_restarts_on_the_timeline_that_was_last_published"),
    Tooth(4, "What is to be skipped is not published with the order, and so forgotten by a restart.", "publish_rewind",
          argument("publish_linked", 1, "{}"),
          "test_a_kill_around_a_rewind_restarts_on_the_timeline_that_was_last_published"),
    Tooth(5, "The first signal ends the process on the spot.", "Signals._take", decides("_begun", "True"),
          "test_sigterm_while_learning_saves_commits_and_leaves_nothing_to_be_read_again"),
    Tooth(5, "What the last checkpoint holds is not committed.", "Service._commit_durable",
          decides("commits", "manifest.reason != 'stop'"),
          "test_sigterm_while_learning_saves_commits_and_leaves_nothing_to_be_read_again"),
    Tooth(5, "A second signal changes nothing.", "Signals._take", decides("is_set", "False"),
          "test_a_second_signal_ends_at_once_what_the_first_is_still_saving"),
    Tooth(5, "A start that has nothing to save is waited for as long as one that has.", "run:_watch",
          decides("nothing_to_save", "False"), "test_sigterm_while_the_model_is_built_ends_well_and_publishes_nothing"),
    Tooth(6, "A broker that does not answer while partitions are recognised ends the fetching.", "Admission._recognise",
          handles("UnreachableError", "raise"),
          "test_source_and_dead_letters_survive_a_broker_that_is_killed_and_started_again"),
    Tooth(6, "A commit waits for as long as Kafka does not answer.", "GroupCommits.commit",
          argument("timeout", 0, "None"),
          "test_source_and_dead_letters_survive_a_broker_that_is_killed_and_started_again"),
    Tooth(7, "The client library may log as much as it likes.", "KafkaSource.start",
          (drop("limit_repeats"), drop("limit_loggers")),
          "test_while_a_killed_broker_is_away_the_queue_is_learnt_and_then_little_is_used"),
    Tooth(8, "A question is given up before its request is, so that its connection never is.",
          "client:_translated_errors", argument("timeout", 0, "options.request_timeout_ms / 2000"),
          "test_a_connection_that_is_open_at_our_end_only_is_given_up_though_nobody_fetches"),
    Tooth(8, "A commit's request is waited for without end, so that its connection is never given up.",
          "GroupCommits.__init__", calls("min", "10**9"),
          "test_connections_that_are_open_at_our_end_only_are_given_up_and_nothing_is_lost", 600),
    Tooth(9, "A commit that Kafka refuses is raised to whoever asked for it.", "GroupCommits.commit",
          handles("Exception", "raise"), "test_a_stranger_in_the_group_refuses_commits_and_stops_nothing_else"),
    Tooth(9, "Refused commits are not counted.", "Committing.commit", drop("_meter.committed"),
          "test_a_stranger_in_the_group_refuses_commits_and_stops_nothing_else"),
    Tooth(10, "What a writer publishes after a later one has begun counts as sound.", "Terms.fences",
          becomes("any", "return False"), "test_what_a_stopped_trainer_publishes_after_it_was_passed_is_never_loaded"),
    Tooth(10, "A writer that was passed never learns of it while it has nothing to save.", "_keep_alive", drop("check"),
          "test_a_stopped_trainer_that_was_passed_ends_by_itself"),
    Tooth(11, "A lock that another process holds counts as free.", "_locked", handles("BlockingIOError", "return True"),
          "test_a_second_trainer_is_refused_and_the_first_is_named"),
    Tooth(12, "Partitions that are added while it runs are not taken in.", "Fetching._look_for_new_partitions",
          decides("new", "not known"), "test_quiet_and_new_partitions_are_learnt_beside_a_hot_and_an_empty_one", 150),
    Tooth(13, "Any record at the offset of the last settled one is taken for it.", "admission:_compare",
          decides("fingerprint_of", "record.offset == kept.offset"),
          "test_a_topic_recreated_while_we_were_away_is_refused_or_restarted_never_mixed"),
    Tooth(14, "Offsets that retention has removed are passed as if there had been nothing.", "Fetching._pass_lost",
          argument("empty_chunk", "lost", "0"),
          "test_unread_records_removed_by_retention_are_counted_as_lost_for_ever"),
    Tooth(14, "The policy to fail is ignored.", "Fetching._pass_lost", decides("out_of_range", "False"),
          "test_unread_records_removed_by_retention_end_the_run_with_a_way_out", 150),
    Tooth(15, "Records of transactions that were aborted are read.", "KafkaClient.__init__",
          keyword("isolation_level", "'read_uncommitted'"),
          "test_compacted_offsets_are_passed_and_aborted_records_are_not_learnt"),
    Tooth(15, "Offsets at the end of a partition that come without any record are never passed.", "Fetching._iterate",
          drop("_pass_empty_ends"), "test_compacted_offsets_are_passed_and_aborted_records_are_not_learnt"),
    Tooth(16, "A save that finds the disk full leaves there what it has written.", "publish_draft", drop("rmtree", 1),
          "test_a_save_that_finds_the_disk_full_leaves_nothing_and_the_next_one_works"),
    Tooth(16, "A save that fails ends the training.", "CheckpointError", becomes("retriable", "retriable = False"),
          "test_training_continues_over_a_full_disk_and_commits_nothing_until_a_save_works"),
    Tooth(17, "What a file holds is loaded without looking whether it is what was written.", "read_verified",
          decides("sha256", "len(expected.sha256) != 64"),
          "test_every_damage_to_every_file_is_found_and_the_parent_is_loaded"),
    Tooth(17, "A checkpoint is gone on from without reading all of its bytes first.", "complaint",
          decides("deep", "deep and size != expected.size"),
          "test_every_damage_to_every_file_is_found_and_the_parent_is_loaded"),
    Tooth(17, "Falling back follows the numbers, not the parents.", "_way_back",
          becomes("ancestors", "return [each for each in reversed(sorted(numbers)) if each < found.manifest.number]"),
          "test_a_torn_rewind_falls_back_to_its_target_and_not_to_the_abandoned_timeline"),
    Tooth(18, "Where nothing verifies it begins anew unasked.", "newest_verified",
          becomes("AllCorruptError _all_corrupt", "return None"),
          "test_all_corrupt_refuses_until_a_new_beginning_is_ordered"),
    Tooth(18, "A beginning may be published beside checkpoints without an order to begin anew.",
          "CheckpointStore.publish", decides("start_over", "request.parent is None and not self.folder.numbers()"),
          "test_all_corrupt_refuses_until_a_new_beginning_is_ordered"),
    Tooth(19, "The names and shapes of a checkpoint are not compared with the model's.", "VariablesPart.check",
          decides("found", "found and not self.variables"),
          "test_another_model_is_refused_untouched_and_a_changed_rate_follows_the_policy"),
    Tooth(19, "A learning rate that was just deployed is overwritten by the checkpoint's.", "Hyperparameters.restore",
          drop("assign"), "test_another_model_is_refused_untouched_and_a_changed_rate_follows_the_policy"),
    Tooth(19, "A hyperparameter that differs is decided in silence.", "Hyperparameters.restore", drop("warning change"),
          "test_another_model_is_refused_untouched_and_a_changed_rate_follows_the_policy"),
    Tooth(20, "What a try has done before it raised stays in the variables.", "IsolatingLearner._try", drop("restore"),
          "test_a_culprit_leaves_no_trace_in_any_variable"),
    Tooth(20, "Of a half that raises only one half is looked at.", "IsolatingLearner._search",
          becomes("extend", "untried.append(np.array_split(rows, 2)[0])"),
          "test_every_record_that_raises_is_found_and_all_others_learnt_and_scored_once"),
    Tooth(21, "However often a start dies in the same call, the next one goes on as ever.", "crash_loop",
          decides("alike >= after", "alike < 0"),
          "test_a_record_that_kills_the_process_is_named_by_a_paused_start_and_skipped"),
    Tooth(21, "What a call has in flight is not written down.", "StartRecord.in_flight", drop("_memory line"),
          "test_a_record_that_kills_the_process_is_named_by_a_paused_start_and_skipped"),
    Tooth(22, "While the hand-off is full, the source looks for room without a pause.", "Fetching._wait_for_room",
          argument("timeout", 0, "0"), "test_while_the_handoff_is_full_the_source_looks_for_room_with_a_pause"),
    Tooth(22, "A phase counts as hung long before its limit.", "PhaseSnapshot.hung",
          becomes("for_s", "return self.limit_s is not None and self.for_s > self.limit_s / 4"),
          "test_liveness_fails_while_a_build_or_step_blocks_past_its_limit_and_comes_back"),
    Tooth(22, "No phase ever counts as hung.", "PhaseSnapshot.hung", becomes("for_s", "return False"),
          "test_liveness_fails_while_a_build_or_step_blocks_past_its_limit_and_comes_back", 240),
    Tooth(23, "A stop does not wake whoever waits on the empty queue.", "Feed.stop", drop("wake"),
          "test_a_stop_wakes_a_generator_that_waits_on_an_empty_queue[20]", 120),
    Tooth(27, "What changes something passes no door.", "ApiMiddleware.__call__",
          decides("_READS", "scope['method'] == 'BREW'"), "test_every_route_that_changes_something_needs_a_token"),
    Tooth(27, "A body that announces no length may be of any.", "middleware:_read", decides("max_body_bytes", "False"),
          "test_a_body_in_chunks_that_is_too_large_is_answered_by_413"),
    Tooth(27, "Nothing bounds how many connections a listener keeps.", "make_room", drop("close_now"),
          "test_beyond_the_most_connections_the_oldest_is_closed_for_each_new_one"),
    Tooth(28, "What raised is told in its own words, which hold the record's values.", "blamed",
          becomes("op_gist", "return f'{error} in {place}'"),
          "test_no_secret_and_no_value_of_a_record_appears_anywhere_after_every_failure"),
    Tooth(28, "A token that is refused stands in the answer.", "TokenAuthorizer.authorize",
          argument("_unauthorized invalid_token", 0, "f'The request brings the token {token}, that nobody has.'"),
          "test_no_secret_and_no_value_of_a_record_appears_anywhere_after_every_failure"),
    Tooth(29, "A start on a full volume prunes nothing before it asks for room.", "Pruner.make_room",
          decides("free_bytes", "False"), "test_the_advice_of_a_full_volume_works_when_it_is_followed"),
    Tooth(29, "A save that meets a full disk prunes nothing.", "CheckpointStore._publish_with_room",
          decides("remove_some", "passed or draft"),
          "test_a_save_that_meets_a_full_disk_prunes_what_keep_allows_and_is_made"),
    Tooth(29, "The newest is not read again before the one to fall back to makes way.", "Pruner._remove_some",
          calls("newest_verified", "(self._good(terms) or [None])[-1]"),
          "test_the_newest_is_read_and_verified_before_its_fallback_makes_way"),
    Tooth(29, "The target of a rewind makes way for the rewind.", "Pruner._remove_some",
          becomes("_needed", "needed = self._needed(newest, good)"),
          "test_the_target_of_a_rewind_stays_though_the_rewind_needs_room"),
    Tooth(30, "A save does not look whether the state is finite.", "TrainerState.check_finite",
          calls("not_finite", "()"), "test_two_records_of_two_thousand_are_set_aside_and_all_others_learnt"),
    Tooth(30, "A try that leaves NaN behind counts as one that has learnt its records.", "IsolatingLearner._try",
          calls("not_finite", "()"), "test_two_records_of_two_thousand_are_set_aside_and_all_others_learnt"),
    Tooth(31, "Members that hold different weights make one checkpoint.", "whole_of", drop("digest"),
          "test_shares_of_different_states_are_refused"),
    Tooth(31, "Members between other calls go on together.", "agree", drop("_require_one_place"),
          "test_members_between_other_calls_are_refused"),
    Tooth(31, "A member keeps the accounts of the partitions that others read.", "GroupState.spread",
          calls("portion", "PartState(facts=facts[self.ledger.name])"),
          "test_when_the_chief_is_killed_the_group_learns_every_record_once"),
    Tooth(32, "An archiver begins at Kafka's first record, whatever its shards hold.", "archive:_run",
          becomes("next_offsets", "positions = source.resolve_start(Earliest())"),
          "test_it_resumes_where_its_shards_end_and_archives_each_offset_once"),
    Tooth(32, "An archiver does not recognise a topic by its last shard.", "archive:_run",
          keyword("fingerprints", "{}"), "test_a_topic_that_was_created_again_is_refused_with_what_to_do"),
    Tooth(32, "A shard gets its name before what describes it is durable.", "OpenShard.close", drop("describe"),
          "test_a_kill_while_a_shard_is_closed_leaves_a_whole_shard_or_none"),
    Tooth(32, "What a killed archiver has left half written stays.", "leftovers", decides("is_facts", "name == OPEN"),
          "test_a_kill_while_a_shard_is_closed_leaves_a_whole_shard_or_none"),
    Tooth(32, "A full disk ends the archiver.", "HashedFile.write", becomes("_wait_for_room", "raise"),
          "test_a_full_disk_is_waited_out_and_the_shard_is_whole"),
    Tooth(33, "An archive that is away has nothing, so that its records are passed as lost.", "ObjectStore._asked",
          handles("Exception", "raise FileNotFoundError from None"),
          "test_an_archive_in_s3_hands_over_to_kafka_also_when_it_is_away_for_a_while"),
    Tooth(33, "What Kafka has removed is not looked for in the archive.", "Fetching._read_before_kafka",
          decides("begin", "position < 0"), "test_a_position_before_kafkas_first_is_read_from_the_archive_up_to_kafka"),
    Tooth(33, "A replayed chunk leaves out the offsets up to the next one.", "ShardReplay.next_chunk",
          becomes("int", "end = self._shard.next_offset"),
          "test_a_position_before_kafkas_first_is_read_from_the_archive_up_to_kafka"),
    Tooth(33, "An archive is read whatever topic it holds.", "Replaying.begin",
          decides("recognises", "settled is not None and start < 0"),
          "test_an_archive_of_another_topic_of_the_same_name_is_not_read"),
    Tooth(34, "A segment whose checkpoint was never published counts.", "JournalReader.__init__",
          decides("fences", "segment.term == term"),
          "test_a_segment_whose_checkpoint_was_never_published_is_fenced_by_the_next_writer"),
    Tooth(34, "What a full disk has left of a segment stays in the journal.", "Journal.append",
          becomes("ftruncate", "self._end = os.fstat(handle).st_size"),
          "test_what_a_full_disk_has_left_half_written_is_taken_back"),
    Tooth(34, "The blocks of a save that failed are not in the next segment.", "BlockRecorder.since",
          becomes("bytes", "raw = bytes(self._raw)\nself._raw.clear()\nreturn raw"),
          "test_checkpoints_of_a_run_with_kills_a_rewind_and_a_skip_are_rebuilt_to_the_bit"),
    Tooth(34, "A rebuilt block begins with any partition.", "RecordedFeed._made", keyword("start", None),
          "test_every_block_of_two_runs_and_a_skip_is_made_again"),
    Tooth(34, "What an order had cut out is learnt by the rebuild.", "plan:steps_of", keyword("skips", "()"),
          "test_every_block_of_two_runs_and_a_skip_is_made_again"),
    Tooth(35, "A pretraining whose patience has ended keeps its last epoch, and calls it the best one.",
          "Pretraining.run", drop("restore"),
          "test_patience_ends_it_and_returns_to_the_best_epoch"),
    Tooth(35, "Epochs that make nothing better go on until the last one.", "Pretraining._enough",
          becomes("patience", "return False"), "test_patience_ends_it_and_returns_to_the_best_epoch"),
    Tooth(35, "A pretraining is judged by rows that it has learnt.", "split",
          becomes("_made_of", "return source, _made_of(source, validation)"),
          "test_the_newest_files_are_validated_on_and_never_trained_on"),
    Tooth(35, "A pretraining begins a history where there is one.", "pretrain:_taken", drop("_require_empty"),
          "test_a_pretrained_model_goes_live_at_the_offset_that_its_checkpoint_names"),
    Tooth(35, "What a killed pretraining has read of a range is in the way of the next one.", "at_hand",
          drop("rmtree", 0), "test_a_range_of_the_topic_is_learnt_whole_and_live_goes_on_at_its_end"),
    Tooth(37, "A flood of bad records is found, and set aside all the same.", "DecodePool.next",
          drop("_await_admission"), "test_a_flood_is_held_back_until_good_records_come_and_none_is_lost_or_sent_twice"),
    Tooth(37, "Nobody looks whether good records come again.", "FloodWatch._watch", drop("_judge"),
          "test_a_flood_is_held_back_until_good_records_come_and_none_is_lost_or_sent_twice"),
    Tooth(37, "It learns on while no dead letter reaches its topic.", "Holding.now",
          decides("STALLED_S", "(stalled_s := 0.0) > STALLED_S"),
          "test_learning_pauses_while_the_topic_of_dead_letters_is_gone_and_skips_nothing"),
    Tooth(39, "Every record of a schema that lacks a field is set aside, and nothing stops.", "SchemaGate.admits",
          decides("_incompatible", "False"), "test_a_schema_that_cannot_be_read_is_held_until_somebody_lets_it_pass"),
    Tooth(39, "While the registry is away, a schema counts as one that it does not have.", "RegistrySchemas.get",
          becomes("NotYetError", "return None"),
          "test_while_it_is_away_nothing_is_decided_and_it_goes_on_when_it_is_back"),
    Tooth(39, "A schema is read from a file of the cache that was damaged.", "KeptSchemas._read",
          decides("whole", "False"), "test_a_damaged_file_of_the_cache_is_asked_for_and_written_again"),
    Tooth(40, "An export is written under its number.", "VersionFolder.draft_folder",
          becomes("token_hex", "return self.root / str(number)"),
          "test_a_kill_while_publishing_leaves_no_half_version[export.after_files]"),
    Tooth(41, "A checkpoint that is pinned while it is pruned is gone.", "Pruner._remove",
          decides("_pinned_meanwhile", "False"), "test_a_pin_set_while_the_pruner_is_at_work_holds"),
    Tooth(41, "A start removes what a killed pruner was removing, pinned or not.", "Pruner.remove_leftovers",
          drop("_bring_back"), "test_a_pruner_killed_after_a_pin_leaves_what_the_next_start_brings_back"),
    Tooth(41, "A fork begins a history where there is one.", "fork:_taken", drop("require_unused"),
          "test_a_name_that_has_checkpoints_is_not_forked_onto"),
    Tooth(41, "A replay leaves out what lies between the old model's position and the offset that Kafka gives.",
          "fork:_offsets", calls("min", "offset"),
          "test_a_replay_begins_where_kafka_says_and_never_after_the_position"),
)
# fmt: on
