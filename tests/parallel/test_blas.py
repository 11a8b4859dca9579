"""The limit of BLAS to one thread, which holds for the whole process."""

from threadpoolctl import threadpool_info, threadpool_limits

from parallel_et.parallel.blas import one_blas_thread


def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_the_limit_holds_until_the_last_of_overlapping_blocks_has_ended():
    with threadpool_limits(2):
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}
