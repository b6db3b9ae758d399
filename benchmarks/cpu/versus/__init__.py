"""The parts of the CPU benchmark: shapes, processes that compete, interleaved rounds, statistics, report."""
