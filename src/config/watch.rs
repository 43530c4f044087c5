//! Notices that a file of the configuration changed.
