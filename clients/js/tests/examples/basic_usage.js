import { createQueenClient } from 'queen-client'

const client = createQueenClient({
  baseUrl: 'http://localhost:3000',
  timeout: 30000,
  retryAttempts: 3
})

// Configure queue
await client.configure({
  ns: 'email-service',
  task: 'notifications',
  queue: 'high-priority',
  options: {
    leaseTime: 300,
    delayedProcessing: 60,
    windowBuffer: 30,
    priority: 10
  }
})

// Push messages
const { messageIds } = await client.push({
  items: [{
    ns: 'email-service',
    task: 'notifications',
    queue: 'high-priority',
    payload: { to: 'user@example.com', template: 'welcome' }
  }]
})

// Pop with long polling
const message = await client.pop({
  ns: 'email-service',
  task: 'notifications',
  queue: 'high-priority',
  wait: true,
  timeout: 30000
})

// Process message
try {
  await processMessage(message)
  // Acknowledge successful processing
  await client.ack(message.transactionId, 'completed')
} catch (error) {
  // Acknowledge failure (message may be retried)
  await client.ack(message.transactionId, 'failed', error.message)
}
