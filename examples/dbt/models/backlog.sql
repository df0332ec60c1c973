SELECT queue, pushed, waiting_now AS waiting FROM {{ source('lake', 'queues') }}
