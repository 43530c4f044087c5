//! Tasks for what clients leave behind: dropping a request cannot wait, and may happen where no task can be
//! spawned.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::task::spawn_local;

/// What a worker still has to do for clients that left.
#[derive(Debug, Default)]
pub struct Leavers {
    /// The worker has ended: nothing runs any more.
    closed: Cell<bool>,
    waiting: RefCell<Vec<Task>>,
    running: Rc<Cell<usize>>,
    notify: Notify,
}

struct Task(Pin<Box<dyn Future<Output = ()>>>);

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

impl Leavers {
    /// May be called where no task can be spawned: in a `Drop`.
    pub(super) fn push(&self, work: Pin<Box<dyn Future<Output = ()>>>) {
        if self.closed.get() {
            return;
        }
        self.waiting.borrow_mut().push(Task(work));
        self.notify.notify_one();
    }

    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.running.get() == 0 && self.waiting.borrow().is_empty()
    }

    /// Drops what is waiting, and all that would still come.
    pub fn close(&self) {
        self.closed.set(true);
        while !self.waiting.borrow().is_empty() {
            drop(self.waiting.take());
        }
    }

    /// Gives each of them a task, for as long as the worker runs.
    pub async fn run(&self) {
        loop {
            self.notify.notified().await;
            for Task(work) in self.waiting.take() {
                let running = Running::new(&self.running);
                spawn_local(async move {
                    work.await;
                    drop(running);
                });
            }
        }
    }
}

struct Running(Rc<Cell<usize>>);

impl Running {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
