/*
Package engines starts real servers of other projects for tests: Valkey, Redis, object stores.

scripts/team-servers installs them. A test that needs one which is not there is skipped, and fails where CI=true.
*/
package engines
