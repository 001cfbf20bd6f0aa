// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title Schedules
/// @notice Values that change at announced times, with at most one announced change each.
library Schedules {
    /// @dev A value and the Unix time in seconds from which it holds.
    struct Entry {
        uint160 value;
        uint40 from;
    }

    /// @dev The newest value is kept apart, so that it costs one storage slot to read. The others are in ascending
    /// order of their times, and the first one holds from time 0.
    struct Schedule {
        Entry newest;
        Entry[] earlier;
    }

    /// @dev Sets the first value.
    function start(Schedule storage schedule, uint160 value) internal {
        schedule.newest = Entry(value, 0);
    }

    /// @dev Announces a value. It replaces a value that was announced and does not hold yet; announcing the present
    /// value cancels that one. Returns whether anything changes.
    function announce(Schedule storage schedule, uint160 value, uint256 from) internal returns (bool isChanged) {
        uint160 present = valueAt(schedule, block.timestamp);
        if (schedule.newest.from > block.timestamp) {
            if (value == present) {
                schedule.newest = schedule.earlier[schedule.earlier.length - 1];
                schedule.earlier.pop();
            } else {
                schedule.newest = Entry(value, uint40(from));
            }
            return true;
        }
        if (value == present) return false;
        schedule.earlier.push(schedule.newest);
        schedule.newest = Entry(value, uint40(from));
        return true;
    }

    /// @dev Returns the value that holds at a time.
    function valueAt(Schedule storage schedule, uint256 time) internal view returns (uint160) {
        Entry memory entry = schedule.newest;
        if (entry.from <= time) return entry.value;
        for (uint256 i = schedule.earlier.length; entry.from > time; --i) {
            entry = schedule.earlier[i - 1];
        }
        return entry.value;
    }

    /// @dev Returns all values, oldest first.
    function list(Schedule storage schedule) internal view returns (Entry[] memory entries) {
        uint256 count = schedule.earlier.length;
        entries = new Entry[](count + 1);
        for (uint256 i = 0; i < count; ++i) {
            entries[i] = schedule.earlier[i];
        }
        entries[count] = schedule.newest;
    }
}
// slither-disable-end timestamp
