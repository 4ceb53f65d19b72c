"""What keeps each row of the matrix, and the test that has to fail where it is taken out.

The table that `make teeth` goes through (`tests/faults/teeth/bite.py`): each entry is one protection, as it stands in
the source, what is put in its place, what is missing then, and the quickest test of its row that guards the
consequence.
"""

from dataclasses import dataclass

_USUAL_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tooth:
    """One protection that can be taken out."""

    row: int
    """Of the matrix of faults."""
    missing: str
    """What is missing without it, in one sentence."""
    file: str
    text: str
    """What is taken out; it stands in the file once."""
    instead: str = ""
    test: str
    """Fails without it; it bears the marker of the row."""
    within_s: float = _USUAL_S
    """What the test may take: where it would hang without the protection, this ends it."""


_KILLS = "tests/faults/test_kills.py"
_EXACT = "tests/faults/test_determinism.py"
_FORMATS = "tests/faults/test_formats.py"
_COMMIT = "tests/faults/test_commit.py"
_START = "tests/faults/test_start.py"
_REWIND = "tests/faults/test_rewind.py"
_STOP = "tests/faults/test_stop.py"
_AWAY = "tests/faults/test_broker_faults.py"
_OUTAGE = "tests/integration/test_broker_outage.py"
_NETWORK = "tests/faults/test_network.py"
_SOURCE = "tests/integration/test_kafka_source.py"
_FLOOD = "tests/faults/test_flood.py"
_CRASHES = "tests/training/checkpoints/test_crashes.py"
_FULL_VOLUME = "tests/training/checkpoints/test_full_volume.py"
_EXPORTED = "tests/training/checkpoints/exports/test_version_folder.py"
_STORE = "tests/training/checkpoints/test_store.py"
_FORK = "tests/app/tools/test_fork.py"
_SCHEMAS, _REGISTRY = "tests/pipelines/gates/test_schema_gate.py", "tests/pipelines/registry/test_registry.py"
_PINS = "tests/training/checkpoints/test_pins.py"
_DAMAGE = "tests/training/checkpoints/test_mutations.py"
_TOPICS = "tests/faults/test_topics.py"
_OTHER = "tests/faults/test_other_model.py"
_CAREFUL = "tests/training/recovery/test_isolation.py"
_NAN = "tests/training/recovery/test_state_not_finite.py"
_HUNG = "tests/faults/test_liveness.py"
_SERVER = "tests/app/api/test_server.py"

_ARCHIVE = "tests/integration/test_archive.py"
_REPLAY = "tests/integration/test_archive_source.py"
_SHARDS = "tests/consumers/archive/test_shards.py"
_JOURNAL = "tests/training/history/test_journal.py"
_REBUILD = "tests/faults/test_rebuild.py"
_PLAN = "tests/app/tools/test_rebuild_plan.py"

_REBUILT = f"{_REBUILD}::test_checkpoints_of_a_run_with_kills_a_rewind_and_a_skip_are_rebuilt_to_the_bit"
_PATIENCE = "tests/training/pretraining/test_epochs.py::test_patience_ends_it_and_returns_to_the_best_epoch"

_IN_A_WINDOW = f"{_CRASHES}::test_a_kill_in_any_window_of_a_save_loads_the_previous_or_the_new_one"
_AROUND_A_REWIND = f"{_REWIND}::test_a_kill_around_a_rewind_restarts_on_the_timeline_that_was_last_published"
_WHILE_LEARNING = f"{_STOP}::test_sigterm_while_learning_saves_commits_and_leaves_nothing_to_be_read_again"
_STRANGER = f"{_SOURCE}::test_a_stranger_in_the_group_refuses_commits_and_stops_nothing_else"
_ANOTHER_MODEL = f"{_OTHER}::test_another_model_is_refused_untouched_and_a_changed_rate_follows_the_policy"
_ALL_CORRUPT = f"{_STORE}::test_all_corrupt_refuses_until_a_new_beginning_is_ordered"
_BLOCKED = f"{_HUNG}::test_liveness_fails_while_a_build_or_step_blocks_past_its_limit_and_comes_back"
_LEFT_OUT = f"{_TOPICS}::test_compacted_offsets_are_passed_and_aborted_records_are_not_learnt"

_WINDOWS = "tests/properties/test_windows.py::test_any_cut_and_any_restart_give_the_rows_of_plain_lists"
_SAMPLES = "tests/properties/test_resampling.py::test_any_cut_and_any_restart_keep_the_rows_of_a_plain_loop"
_RESERVOIR = "tests/training/model/call/test_reservoir.py"

TEETH = (
    Tooth(
        row=38,
        missing="That each record is one object is not looked at.",
        file="pipelines/formats/json/decoder.py",
        text="        if table.num_rows == len(records):\n            return table\n",
        instead="        if table.num_rows >= len(records):\n            return table.slice(0, len(records))\n",
        test=f"{_FORMATS}::test_what_is_learnt_or_set_aside_is_what_was_produced_by_kind_and_reason",
        within_s=300,
    ),
    Tooth(
        row=36,
        missing="What is held of a key's last records moves by whole chunks, and not by what is settled.",
        file="pipelines/shaping/followed_states.py",
        text="            if one.log and one.position < one.settled:",
        instead="            if one.log and one.position > one.settled:",
        test=_WINDOWS,
    ),
    Tooth(
        row=36,
        missing="Sequences that are made ahead of what is learnt are in its checkpoints.",
        file="pipelines/shaping/followed_states.py",
        text="one.state.copy() for partition, one in kept.items()",
        instead="one.state for partition, one in kept.items()",
        test=_WINDOWS,
    ),
    Tooth(
        row=36,
        missing="The records of the present cell of offsets count for nothing after a restart.",
        file="pipelines/shaping/balance/class_sampler.py",
        text='self.seen = np.array(facts["seen"], np.int64)',
        instead="self.seen = np.zeros_like(self.seen)",
        test=_SAMPLES,
    ),
    Tooth(
        row=36,
        missing="What shaping remembers is in no checkpoint.",
        file="training/trainer/state.py",
        text="return PartState(arrays=arrays, facts=facts)",
        instead="return PartState()",
        test=f"{_EXACT}::test_shaped_learning_is_bit_identical_through_kills",
        within_s=900,
    ),
    Tooth(
        row=36,
        missing="After a restart the rows of the past are a sample of less than there was.",
        file="training/model/call/reservoir.py",
        text="            self._counts.assign(tf.stack([tf.minimum(held + count, self.size), seen + count]))",
        instead="            self._counts.assign(tf.stack([tf.minimum(held + count, self.size), held + count]))",
        test=f"{_RESERVOIR}::test_it_holds_what_algorithm_r_would_however_batches_are_cut_into_calls",
    ),
    Tooth(
        row=36,
        missing="Rows of the past are drawn otherwise after a restart.",
        file="training/model/call/reservoir.py",
        text="        self._counts.assign([held, seen])\n",
        instead="        self._counts.assign([held, held])\n",
        test=f"{_RESERVOIR}::test_a_restored_checkpoint_continues_with_the_same_bits",
    ),
    Tooth(
        row=1,
        missing="What the optimizer knew is not brought back with the weights.",
        file="training/model/variables.py",
        text="            if key in arrays:\n                assign(",
        instead='            if key in arrays and self.name != "optimizer":\n                assign(',
        test=f"{_EXACT}::test_a_resumed_run_with_dropout_is_bit_identical_to_an_undisturbed_one",
        within_s=900,
    ),
    Tooth(
        row=1,
        missing="Reading does not begin exactly where the checkpoint stands.",
        file="consumers/kafka/client.py",
        text="            self.seek(partition, position)",
        instead="            self.seek(partition, position + 1)",
        test=f"{_EXACT}::test_a_resumed_run_with_dropout_is_bit_identical_to_an_undisturbed_one",
        within_s=900,
    ),
    Tooth(
        row=1,
        missing="A restart goes on from the oldest checkpoint instead of the newest.",
        file="training/checkpoints/fallback.py",
        text="for number in reversed(numbers))",
        instead="for number in numbers)",
        test=_KILLS,
        within_s=1200,
    ),
    Tooth(
        row=2,
        missing="A checkpoint is written under its final name, so that a part of one has a number.",
        file="training/checkpoints/publication.py",
        text="    temporary, published = writer.folder.saving(draft.number, writer.term), writer.folder.checkpoint(",
        instead="    temporary = published = writer.folder.checkpoint(",
        test=f"{_IN_A_WINDOW}[save.before_manifest]",
    ),
    Tooth(
        row=2,
        missing="What a writer that died has left half written is never removed.",
        file="training/checkpoints/store.py",
        text="            self._pruner.remove_leftovers(writer)",
        instead="            pass",
        test=f"{_IN_A_WINDOW}[save.after_data]",
    ),
    Tooth(
        row=2,
        missing="Positions are committed before their checkpoint is durable.",
        file="app/service/service.py",
        text="before_manifest=partial(await_letters, dead_letters, self.settings.records.dead_letters.topic)",
        instead="before_manifest=lambda request: source.commit(request.positions).result(_COMMIT_S)",
        test=f"{_COMMIT}::test_a_kill_around_a_commit_leaves_the_offsets_of_a_durable_checkpoint",
    ),
    Tooth(
        row=3,
        missing="A beginning from which nothing was learnt yet is no beginning: the start is resolved anew.",
        file="app/service/service.py",
        text="start_over=self.options.start_over)\n        what",
        instead="start_over=(known := store.newest()) is None or not known.step)\n        what",
        test=f"{_START}::test_start_latest_skips_nothing_written_later_though_killed_before_any_save",
        within_s=150,
    ),
    Tooth(
        row=3,
        missing="The locks of those who wrote before stay for ever.",
        file="training/checkpoints/lease.py",
        text="            _remove_locks_before(self.folder, self.term)\n",
        test=f"{_START}::test_a_start_killed_again_and_again_converges_and_leaves_no_more_files_than_one",
        within_s=900,
    ),
    Tooth(
        row=4,
        missing="An order is carried out, and not published.",
        file="training/history/rewind.py",
        text="    manifest = store.publish_linked(target, under_its_number, order)",
        instead="    manifest = store.manifest(command.to)",
        test=_AROUND_A_REWIND,
    ),
    Tooth(
        row=4,
        missing="A restart goes on from where most was learnt, instead of from what was last ordered.",
        file="training/checkpoints/fallback.py",
        text="    looks = (look(number) for number in reversed(numbers))",
        instead="    looks = iter(sorted(map(look, reversed(numbers)), key=lambda at: -at.manifest.step if at.manifest "
        "else 0))",
        test=_AROUND_A_REWIND,
    ),
    Tooth(
        row=4,
        missing="What is to be skipped is not published with the order, and so forgotten by a restart.",
        file="training/history/rewind.py",
        text="    manifest = store.publish_linked(target, under_its_number, order)",
        instead="    manifest = store.publish_linked(target, {}, order)",
        test=_AROUND_A_REWIND,
    ),
    Tooth(
        row=5,
        missing="The first signal ends the process on the spot.",
        file="app/service/signals.py",
        text="        if not self._begun:\n            os._exit(0)",
        instead="        os._exit(0)",
        test=_WHILE_LEARNING,
    ),
    Tooth(
        row=5,
        missing="What the last checkpoint holds is not committed.",
        file="app/service/service.py",
        text="        if self.options.commits:",
        instead='        if manifest.reason != "stop":',
        test=_WHILE_LEARNING,
    ),
    Tooth(
        row=5,
        missing="A second signal changes nothing.",
        file="app/service/signals.py",
        text="        if self.asked.is_set():\n            os._exit(FORCED)\n",
        test=f"{_STOP}::test_a_second_signal_ends_at_once_what_the_first_is_still_saving",
    ),
    Tooth(
        row=5,
        missing="A start that has nothing to save is waited for as long as one that has.",
        file="app/run.py",
        text=" and service.nothing_to_save and ",
        instead=" and False and ",
        test=f"{_STOP}::test_sigterm_while_the_model_is_built_ends_well_and_publishes_nothing",
    ),
    Tooth(
        row=6,
        missing="A broker that does not answer while partitions are recognised ends the fetching.",
        file="consumers/kafka/admission.py",
        text="            self._meter.unanswered(str(error))\n            return False",
        instead="            raise",
        test=f"{_OUTAGE}::test_source_and_dead_letters_survive_a_broker_that_is_killed_and_started_again",
    ),
    Tooth(
        row=6,
        missing="A commit waits for as long as Kafka does not answer.",
        file="consumers/kafka/client.py",
        text="                async with asyncio.timeout(self._options.commit_timeout_ms / 1000):",
        instead="                async with asyncio.timeout(None):",
        test=f"{_OUTAGE}::test_source_and_dead_letters_survive_a_broker_that_is_killed_and_started_again",
    ),
    Tooth(
        row=7,
        missing="The client library may log as much as it likes.",
        file="consumers/kafka/source.py",
        text='        limit_repeats("aiokafka")\n'
        '        limit_loggers("aiokafka", self._options.log_lines_per_minute)\n',
        test=f"{_AWAY}::test_while_a_killed_broker_is_away_the_queue_is_learnt_and_then_little_is_used",
    ),
    Tooth(
        row=8,
        missing="A question is given up before its request is, so that its connection never is.",
        file="consumers/kafka/client.py",
        text="        async with asyncio.timeout((options.request_timeout_ms + 2 * _SPARE_MS) / 1000):",
        instead="        async with asyncio.timeout(options.request_timeout_ms / 2000):",
        test=f"{_NETWORK}::test_a_connection_that_is_open_at_our_end_only_is_given_up_though_nobody_fetches",
    ),
    Tooth(
        row=8,
        missing="A commit's request is waited for without end, so that its connection is never given up.",
        file="consumers/kafka/client.py",
        text="min(options.request_timeout_ms, options.commit_timeout_ms // 2)",
        instead="10**9",
        test=f"{_NETWORK}::test_connections_that_are_open_at_our_end_only_are_given_up_and_nothing_is_lost",
        within_s=600,
    ),
    Tooth(
        row=9,
        missing="A commit that Kafka refuses is raised to whoever asked for it.",
        file="consumers/kafka/client.py",
        text="                return type(error).__name__\n        return None",
        instead="                raise error\n        return None",
        test=_STRANGER,
    ),
    Tooth(
        row=9,
        missing="Refused commits are not counted.",
        file="consumers/kafka/commits.py",
        text="            self._meter.committed(refusal)\n",
        test=_STRANGER,
    ),
    Tooth(
        row=10,
        missing="What a writer publishes after a later one has begun counts as sound.",
        file="training/checkpoints/fencing.py",
        text="        return any(record.term > term and number > record.began_after for record in self.records)",
        instead="        return False",
        test=f"{_CRASHES}::test_what_a_stopped_trainer_publishes_after_it_was_passed_is_never_loaded",
    ),
    Tooth(
        row=10,
        missing="A writer that was passed never learns of it while it has nothing to save.",
        file="training/checkpoints/lease.py",
        text="            writer.check()\n            writer.touch()",
        instead="            writer.touch()",
        test=f"{_CRASHES}::test_a_stopped_trainer_that_was_passed_ends_by_itself",
    ),
    Tooth(
        row=11,
        missing="A lock that another process holds counts as free.",
        file="training/checkpoints/lease.py",
        text="    except BlockingIOError:\n        return False",
        instead="    except BlockingIOError:\n        return True",
        test=f"{_CRASHES}::test_a_second_trainer_is_refused_and_the_first_is_named",
    ),
    Tooth(
        row=12,
        missing="Partitions that are added while it runs are not taken in.",
        file="consumers/kafka/fetching.py",
        text="        elif new:\n",
        instead="        elif not known:\n",
        test=f"{_TOPICS}::test_quiet_and_new_partitions_are_learnt_beside_a_hot_and_an_empty_one",
        within_s=150,
    ),
    Tooth(
        row=13,
        missing="Any record at the offset of the last settled one is taken for it.",
        file="consumers/kafka/topic_identity.py",
        text="    if fingerprint_of(record) == kept:",
        instead="    if record.offset == kept.offset:",
        test=f"{_TOPICS}::test_a_topic_recreated_while_we_were_away_is_refused_or_restarted_never_mixed",
    ),
    Tooth(
        row=14,
        missing="Offsets that retention has removed are passed as if there had been nothing.",
        file="consumers/kafka/fetching.py",
        text=", lost=end - position))",
        instead=", lost=0))",
        test=f"{_TOPICS}::test_unread_records_removed_by_retention_are_counted_as_lost_for_ever",
    ),
    Tooth(
        row=14,
        missing="The policy to fail is ignored.",
        file="consumers/kafka/fetching.py",
        text='        if self._options.out_of_range == "fail":',
        instead='        if self._options.out_of_range == "never":',
        test=f"{_TOPICS}::test_unread_records_removed_by_retention_end_the_run_with_a_way_out",
        within_s=150,
    ),
    Tooth(
        row=15,
        missing="Records of transactions that were aborted are read.",
        file="consumers/kafka/client.py",
        text="            isolation_level=options.isolation_level,",
        instead='            isolation_level="read_uncommitted",',
        test=_LEFT_OUT,
    ),
    Tooth(
        row=15,
        missing="Offsets at the end of a partition that come without any record are never passed.",
        file="consumers/kafka/fetching.py",
        text="        await self._pass_empty_ends(ready, idle=not polled)  # (8)\n",
        test=_LEFT_OUT,
    ),
    Tooth(
        row=16,
        missing="A save that finds the disk full leaves there what it has written.",
        file="training/checkpoints/publication.py",
        text="        shutil.rmtree(temporary, ignore_errors=True)\n        if _is_still_writer(",
        instead="        if _is_still_writer(",
        test="tests/training/checkpoints/test_full_disk.py::test_a_save_that_finds_the_disk_full_leaves_nothing_and"
        "_the_next_one_works",
    ),
    Tooth(
        row=16,
        missing="A save that fails ends the training.",
        file="training/errors.py",
        text='the next save tries again."""\n\n    retriable = True',
        instead='the next save tries again."""\n\n    retriable = False',
        test="tests/faults/test_full_disk.py::test_training_continues_over_a_full_disk_and_commits_nothing_until_a"
        "_save_works",
    ),
    Tooth(
        row=17,
        missing="What a file holds is loaded without looking whether it is what was written.",
        file="training/checkpoints/files.py",
        text="    if hashlib.sha256(raw).hexdigest() != expected.sha256:",
        instead="    if len(expected.sha256) != 64:",
        test=f"{_DAMAGE}::test_every_damage_to_every_file_is_found_and_the_parent_is_loaded",
    ),
    Tooth(
        row=17,
        missing="A checkpoint is gone on from without reading all of its bytes first.",
        file="consumers/durable_files.py",
        text="            if deep and _hash(file) != expected.sha256:",
        instead="            if deep and size != expected.size:",
        test=f"{_DAMAGE}::test_every_damage_to_every_file_is_found_and_the_parent_is_loaded",
    ),
    Tooth(
        row=17,
        missing="Falling back follows the numbers, not the parents.",
        file="training/checkpoints/fallback.py",
        text="        return [number for number in found.manifest.ancestors if number in numbers]",
        instead="        return [number for number in reversed(sorted(numbers)) if number < found.manifest.number]",
        test=f"{_STORE}::test_a_torn_rewind_falls_back_to_its_target_and_not_to_the_abandoned_timeline",
    ),
    Tooth(
        row=18,
        missing="Where nothing verifies it begins anew unasked.",
        file="training/checkpoints/fallback.py",
        text="            raise AllCorruptError(_all_corrupt(folder, numbers, look, found))",
        instead="            return None",
        test=_ALL_CORRUPT,
    ),
    Tooth(
        row=18,
        missing="A beginning may be published beside checkpoints without an order to begin anew.",
        file="training/checkpoints/store.py",
        text="            if request.parent is None and not start_over:",
        instead="            if request.parent is None and not self.folder.numbers():",
        test=_ALL_CORRUPT,
    ),
    Tooth(
        row=19,
        missing="The names and shapes of a checkpoint are not compared with the model's.",
        file="training/model/variables.py",
        text="        if found:\n            raise OtherModelError(",
        instead="        if found and not self.variables:\n            raise OtherModelError(",
        test=_ANOTHER_MODEL,
    ),
    Tooth(
        row=19,
        missing="A learning rate that was just deployed is overwritten by the checkpoint's.",
        file="training/model/hyperparameters.py",
        text="                assign(self._variables[change.name], self._built[change.name])",
        instead="                pass",
        test=_ANOTHER_MODEL,
    ),
    Tooth(
        row=19,
        missing="A hyperparameter that differs is decided in silence.",
        file="training/model/hyperparameters.py",
        text='            log.warning("%s", change)\n',
        test=_ANOTHER_MODEL,
    ),
    Tooth(
        row=20,
        missing="What a try has done before it raised stays in the variables.",
        file="training/recovery/isolation.py",
        text="            variables.restore()\n",
        test=f"{_CAREFUL}::test_a_culprit_leaves_no_trace_in_any_variable",
    ),
    Tooth(
        row=20,
        missing="Of a half that raises only one half is looked at.",
        file="training/recovery/isolation.py",
        text="                untried.extend(reversed(np.array_split(rows, 2)))",
        instead="                untried.append(np.array_split(rows, 2)[0])",
        test=f"{_CAREFUL}::test_every_record_that_raises_is_found_and_all_others_learnt_and_scored_once",
    ),
    Tooth(
        row=21,
        missing="However often a start dies in the same call, the next one goes on as ever.",
        file="training/recovery/crash_guard.py",
        text="    if alike >= after:",
        instead="    if alike < 0:",
        test="tests/faults/test_crash_loop.py::test_a_record_that_kills_the_process_is_named_by_a_paused_start_and"
        "_skipped",
    ),
    Tooth(
        row=21,
        missing="What a call has in flight is not written down.",
        file="training/checkpoints/in_flight.py",
        text="        self._memory[: len(line)] = line\n",
        test="tests/faults/test_crash_loop.py::test_a_record_that_kills_the_process_is_named_by_a_paused_start_and"
        "_skipped",
    ),
    Tooth(
        row=22,
        missing="While the hand-off is full, the source looks for room without a pause.",
        file="consumers/kafka/fetching.py",
        text="            async with asyncio.timeout(_LOOK_EVERY_S):",
        instead="            async with asyncio.timeout(0):",
        test="tests/consumers/kafka/test_fetching.py::test_while_the_handoff_is_full_the_source_looks_for_room_with_a_pause",
    ),
    Tooth(
        row=22,
        missing="A phase counts as hung long before its limit.",
        file="training/telemetry/phases.py",
        text="self.for_s > self.limit_s\n",
        instead="self.for_s > self.limit_s / 4\n",
        test=_BLOCKED,
    ),
    Tooth(
        row=22,
        missing="No phase ever counts as hung.",
        file="training/telemetry/phases.py",
        text="self.for_s > self.limit_s\n",
        instead="self.for_s < 0\n",
        test=_BLOCKED,
        within_s=240,
    ),
    Tooth(
        row=23,
        missing="A stop does not wake whoever waits on the empty queue.",
        file="pipelines/stream/feed.py",
        text="        self._handoff.wake()\n",
        test="tests/pipelines/stream/test_dataset.py::test_a_stop_wakes_a_generator_that_waits_on_an_empty_queue[20]",
        within_s=120,
    ),
    Tooth(
        row=27,
        missing="What changes something passes no door.",
        file="app/api/middleware.py",
        text="by = await self._authorize(scope) if self._manner.is_command(scope) else None",
        instead='by = await self._authorize(scope) if scope["method"] == "BREW" else None',
        test="tests/app/api/test_tokens.py::test_every_route_that_changes_something_needs_a_token",
    ),
    Tooth(
        row=27,
        missing="A body that announces no length may be of any.",
        file="app/api/middleware.py",
        text="        if len(body) > manner.max_body_bytes:\n            raise _too_large(manner)\n",
        test=f"{_SERVER}::test_a_body_in_chunks_that_is_too_large_is_answered_by_413",
    ),
    Tooth(
        row=27,
        missing="Nothing bounds how many connections a listener keeps.",
        file="app/api/http_protocol.py",
        text='        min(connections, key=attrgetter("opened_at")).close_now()',
        instead="        pass",
        test=f"{_SERVER}::test_beyond_the_most_connections_the_oldest_is_closed_for_each_new_one",
    ),
    Tooth(
        row=28,
        missing="What raised is told in its own words, which hold the record's values.",
        file="training/recovery/isolation.py",
        text="    return op_gist(error, place)",
        instead='    return f"{error} in {place}"',
        test="tests/faults/test_secrets.py::test_no_secret_and_no_value_of_a_record_appears_anywhere_after_every"
        "_failure",
    ),
    Tooth(
        row=28,
        missing="A token that is refused stands in the answer.",
        file="app/api/authorization.py",
        text='            )\n        raise _unauthorized("The request brings a token that nobody has.",',
        instead='            )\n        raise _unauthorized(f"The request brings the token {token}, that nobody has.",',
        test="tests/faults/test_secrets.py::test_no_secret_and_no_value_of_a_record_appears_anywhere_after_every"
        "_failure",
    ),
    Tooth(
        row=29,
        missing="A start on a full volume prunes nothing before it asks for room.",
        file="training/checkpoints/pruning.py",
        text="        while self.free_bytes() < needed and self.remove_some(writer, parent):",
        instead="        while False:",
        test=f"{_FULL_VOLUME}::test_the_advice_of_a_full_volume_works_when_it_is_followed",
    ),
    Tooth(
        row=29,
        missing="A save that meets a full disk prunes nothing.",
        file="training/checkpoints/store.py",
        text="if not self._pruner.remove_some(writer, draft.request.parent) or passed:",
        instead="if passed or draft:",
        test=f"{_FULL_VOLUME}::test_a_save_that_meets_a_full_disk_prunes_what_keep_allows_and_is_made",
    ),
    Tooth(
        row=29,
        missing="The newest is not read again before the one to fall back to makes way.",
        file="training/checkpoints/pruning.py",
        text="        newest = newest_verified(self.folder, terms, lambda number: self.look(number, terms))",
        instead="        newest = self._good(terms)[-1] if self._good(terms) else None",
        test=f"{_FULL_VOLUME}::test_the_newest_is_read_and_verified_before_its_fallback_makes_way",
    ),
    Tooth(
        row=29,
        missing="The target of a rewind makes way for the rewind.",
        file="training/checkpoints/pruning.py",
        text=" | ({parent} if parent is not None else set())",
        test=f"{_FULL_VOLUME}::test_the_target_of_a_rewind_stays_though_the_rewind_needs_room",
    ),
    Tooth(
        row=30,
        missing="A save does not look whether the state is finite.",
        file="training/trainer/state.py",
        text="        if names := self._learner.not_finite():",
        instead="        if names := list[str]():",
        test=f"{_NAN}::test_two_records_of_two_thousand_are_set_aside_and_all_others_learnt",
    ),
    Tooth(
        row=30,
        missing="A try that leaves NaN behind counts as one that has learnt its records.",
        file="training/recovery/isolation.py",
        text="            if names := self.learner.not_finite():",
        instead="            if names := list[str]():",
        test=f"{_NAN}::test_two_records_of_two_thousand_are_set_aside_and_all_others_learnt",
    ),
    Tooth(
        row=31,
        missing="Members that hold different weights make one checkpoint.",
        file="training/group/shares.py",
        text='    _require_one_of({share.digest for share in shares}, "hold different weights")',
        instead="",
        test="tests/training/group/test_shares.py::test_shares_of_different_states_are_refused",
    ),
    Tooth(
        row=31,
        missing="Members between other calls go on together.",
        file="training/group/agreement.py",
        text="    _require_one_place(words)\n",
        instead="",
        test="tests/training/group/test_agreement.py::test_members_between_other_calls_are_refused",
    ),
    Tooth(
        row=31,
        missing="A member keeps the accounts of the partitions that others read.",
        file="training/group/one_state.py",
        text="        self.ledger.restore(portion(PartState(facts=facts[self.ledger.name]), mine))",
        instead="        self.ledger.restore(PartState(facts=facts[self.ledger.name]))",
        test="tests/faults/test_group.py::test_when_the_chief_is_killed_the_group_learns_every_record_once",
    ),
    Tooth(
        row=32,
        missing="An archiver begins at Kafka's first record, whatever its shards hold.",
        file="app/tools/archive.py",
        text="    positions = {**source.resolve_start(Earliest()), **next_offsets(shards)}",
        instead="    positions = source.resolve_start(Earliest())",
        test=f"{_ARCHIVE}::test_it_resumes_where_its_shards_end_and_archives_each_offset_once",
    ),
    Tooth(
        row=32,
        missing="An archiver does not recognise a topic by its last shard.",
        file="app/tools/archive.py",
        text="{shard.partition: shard.fingerprint for shard in shards}",
        instead="{shard.partition: shard.fingerprint for shard in shards[:0]}",
        test=f"{_ARCHIVE}::test_a_topic_that_was_created_again_is_refused_with_what_to_do",
    ),
    Tooth(
        row=32,
        missing="A shard gets its name before what describes it is durable.",
        file="consumers/archive/shard_writer.py",
        text="        self._repeat_while_full(lambda: draft.describe(shard.key, facts_document(shard)))  # (2)",
        test=f"{_SHARDS}::test_a_kill_while_a_shard_is_closed_leaves_a_whole_shard_or_none",
    ),
    Tooth(
        row=32,
        missing="What a killed archiver has left half written stays.",
        file="consumers/archive/shards.py",
        text="if name.startswith(OPEN) or is_facts(name))",
        instead="if name == OPEN)",
        test=f"{_SHARDS}::test_a_kill_while_a_shard_is_closed_leaves_a_whole_shard_or_none",
    ),
    Tooth(
        row=32,
        missing="A full disk ends the archiver.",
        file="consumers/archive/shard_writer.py",
        text="                self._wait_for_room(error)\n        self._digest",
        instead="                raise\n        self._digest",
        test=f"{_SHARDS}::test_a_full_disk_is_waited_out_and_the_shard_is_whole",
    ),
    Tooth(
        row=33,
        missing="An archive that is away has nothing, so that its records are passed as lost.",
        file="consumers/archive/object_store.py",
        text="        except Exception as error:  # each store",
        instead="        except Exception as error:\n            raise FileNotFoundError from None  # each store",
        test=f"{_REPLAY}::test_an_archive_in_s3_hands_over_to_kafka_also_when_it_is_away_for_a_while",
    ),
    Tooth(
        row=33,
        missing="What Kafka has removed is not looked for in the archive.",
        file="consumers/kafka/fetching.py",
        text="        if await self._replaying.begin(partition, position, self._stop_at(partition), settled):",
        instead="        if position < 0:",
        test=f"{_REPLAY}::test_a_position_before_kafkas_first_is_read_from_the_archive_up_to_kafka",
    ),
    Tooth(
        row=33,
        missing="A replayed chunk leaves out the offsets up to the next one.",
        file="consumers/archive/replay.py",
        text="        end = self._shard.next_offset if self._ahead is None else int(self._ahead.offsets[0])",
        instead="        end = self._shard.next_offset",
        test=f"{_REPLAY}::test_a_position_before_kafkas_first_is_read_from_the_archive_up_to_kafka",
    ),
    Tooth(
        row=33,
        missing="An archive is read whatever topic it holds.",
        file="consumers/kafka/replaying.py",
        text="        if settled is not None and not await asyncio.to_thread(replay.recognises, settled):",
        instead="        if settled is not None and start < 0:",
        test=f"{_REPLAY}::test_an_archive_of_another_topic_of_the_same_name_is_not_read",
    ),
    Tooth(
        row=34,
        missing="A segment whose checkpoint was never published counts.",
        file="training/history/journal.py",
        text=" and not terms.fences(term, segment.number)",
        test=f"{_JOURNAL}::test_a_segment_whose_checkpoint_was_never_published_is_fenced_by_the_next_writer",
    ),
    Tooth(
        row=34,
        missing="What a full disk has left of a segment stays in the journal.",
        file="training/history/journal.py",
        text="    os.ftruncate(handle, at)\n",
        instead="    at = os.fstat(handle).st_size\n",
        test=f"{_JOURNAL}::test_what_a_full_disk_has_left_half_written_is_taken_back",
    ),
    Tooth(
        row=34,
        missing="The blocks of a save that failed are not in the next segment.",
        file="training/history/journal_blocks.py",
        text="        return bytes(self._raw)",
        instead="        raw = bytes(self._raw)\n        self._raw.clear()\n        return raw",
        test=_REBUILT,
    ),
    Tooth(
        row=34,
        missing="A rebuilt block begins with any partition.",
        file="pipelines/stream/recorded_feed.py",
        text="            start=planned.turn,\n",
        test=f"{_PLAN}::test_every_block_of_two_runs_and_a_skip_is_made_again",
    ),
    Tooth(
        row=34,
        missing="What an order had cut out is learnt by the rebuild.",
        file="app/tools/rebuild/plan.py",
        text="ends, turn, ledger.skips, incarnation)",
        instead="ends, turn, (), incarnation)",
        test=f"{_PLAN}::test_every_block_of_two_runs_and_a_skip_is_made_again",
    ),
    Tooth(
        row=35,
        missing="A pretraining whose patience has ended keeps its last epoch, and calls it the best one.",
        file="training/pretraining/epochs.py",
        text="        best = self._return_to_best() if self._best.state else epochs[-1].number",
        instead="        best = self._best.number or epochs[-1].number",
        test=_PATIENCE,
    ),
    Tooth(
        row=35,
        missing="Epochs that make nothing better go on until the last one.",
        file="training/pretraining/epochs.py",
        text="        return epoch.number - best.number >= options.patience",
        instead="        return False",
        test=_PATIENCE,
    ),
    Tooth(
        row=35,
        missing="A pretraining is judged by rows that it has learnt.",
        file="app/tools/pretrain/shard_sources.py",
        text="    return _made_of(source, training), _made_of(source, validation)",
        instead="    return source, _made_of(source, validation)",
        test="tests/app/tools/test_pretrain_sources.py::test_the_newest_files_are_validated_on_and_never_trained_on",
    ),
    Tooth(
        row=35,
        missing="A pretraining begins a history where there is one.",
        file="app/tools/pretrain/pretrain.py",
        text="        _require_empty(store)\n",
        test="tests/faults/test_pretraining.py"
        "::test_a_pretrained_model_goes_live_at_the_offset_that_its_checkpoint_names",
    ),
    Tooth(
        row=35,
        missing="What a killed pretraining has read of a range is in the way of the next one.",
        file="app/tools/pretrain/topic_range.py",
        text="    shutil.rmtree(folder, ignore_errors=True)\n    if",
        instead="    if",
        test="tests/faults/test_pretraining.py::test_a_range_of_the_topic_is_learnt_whole_and_live_goes_on_at_its_end",
    ),
    Tooth(
        row=37,
        missing="A flood of bad records is found, and set aside all the same.",
        file="pipelines/stream/decode.py",
        text="            self._await_admission(head, decoded, timeout)\n",
        test=f"{_FLOOD}::test_a_flood_is_held_back_until_good_records_come_and_none_is_lost_or_sent_twice",
    ),
    Tooth(
        row=37,
        missing="Nobody looks whether good records come again.",
        file="app/service/flood_watch.py",
        text="                self._judge(source, ends)",
        instead="                pass",
        test=f"{_FLOOD}::test_a_flood_is_held_back_until_good_records_come_and_none_is_lost_or_sent_twice",
    ),
    Tooth(
        row=37,
        missing="It learns on while no dead letter reaches its topic.",
        file="app/service/holding.py",
        text="        if (stalled_s := self._letters.stalled_s) > STALLED_S:",
        instead="        if (stalled_s := 0.0) > STALLED_S:",
        test=f"{_FLOOD}::test_learning_pauses_while_the_topic_of_dead_letters_is_gone_and_skips_nothing",
    ),
    Tooth(
        row=39,
        missing="Every record of a schema that lacks a field is set aside, and nothing stops.",
        file="pipelines/gates/schema_gate.py",
        text="            if self._holds and (found := self._incompatible(decoded, skips)) is not None:",
        instead="            if False and (found := self._incompatible(decoded, skips)) is not None:",
        test=f"{_SCHEMAS}::test_a_schema_that_cannot_be_read_is_held_until_somebody_lets_it_pass",
    ),
    Tooth(
        row=39,
        missing="While the registry is away, a schema counts as one that it does not have.",
        file="pipelines/registry/schemas.py",
        text="                    raise NotYetError(self._complaint(number))",
        instead="                    return None",
        test=f"{_REGISTRY}::test_while_it_is_away_nothing_is_decided_and_it_goes_on_when_it_is_back",
    ),
    Tooth(
        row=39,
        missing="A schema is read from a file of the cache that was damaged.",
        file="pipelines/registry/schemas.py",
        text="        if not whole:\n",
        instead="        if False:\n",
        test=f"{_REGISTRY}::test_a_damaged_file_of_the_cache_is_asked_for_and_written_again",
    ),
    Tooth(
        row=40,
        missing="An export is written under its number.",
        file="training/checkpoints/exports/version_folder.py",
        text='self.root / f".tmp-{number}-{secrets.token_hex(4)}"',
        instead="self.root / str(number)",
        test=f"{_EXPORTED}::test_a_kill_while_publishing_leaves_no_half_version[export.after_files]",
    ),
    Tooth(
        row=41,
        missing="A checkpoint that is pinned while it is pruned is gone.",
        file="training/checkpoints/pruning.py",
        text="            if self._pinned_meanwhile(number):",
        instead="            if False:",
        test=f"{_PINS}::test_a_pin_set_while_the_pruner_is_at_work_holds",
    ),
    Tooth(
        row=41,
        missing="A start removes what a killed pruner was removing, pinned or not.",
        file="training/checkpoints/pruning.py",
        text="        left = [path for path in left if not self._bring_back(path)]\n",
        test=f"{_PINS}::test_a_pruner_killed_after_a_pin_leaves_what_the_next_start_brings_back",
    ),
    Tooth(
        row=41,
        missing="A fork begins a history where there is one.",
        file="app/tools/fork/fork.py",
        text="        require_unused(store)\n",
        test=f"{_FORK}::test_a_name_that_has_checkpoints_is_not_forked_onto",
    ),
    Tooth(
        row=41,
        missing="A replay leaves out what lies between the old model's position and the offset that Kafka gives.",
        file="app/tools/fork/fork.py",
        text="min(offset, learnt.get(partition, offset))",
        instead="offset",
        test=f"{_FORK}::test_a_replay_begins_where_kafka_says_and_never_after_the_position",
    ),
)
